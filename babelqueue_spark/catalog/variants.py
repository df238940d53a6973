"""VARIANT in the columns of a catalog, for what has no fixed type; the JVM parses it."""

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from babelqueue_spark.connector.rows.reading import arrow_fields
from babelqueue_spark.envelope.typed import JSON_VALUE, typed
from babelqueue_spark.functions import typed_data, udf
from babelqueue_spark.schemas.registry import Registry

VARIANT_FORMATS = ("parquet", "delta")
"""The formats of files and tables that keep it, on each PySpark and Delta Lake that is tested."""


def payload_type(catalog: Registry, urn: str, variant: bool) -> DataType:
    """Return the type of a URN's payload; what has no fixed type is JSON text, or VARIANT.

    Raises:
        KeyError: there is no schema.
    """
    return (
        _spark_type(catalog.arrow_type(urn, JSON_VALUE))
        if variant
        else from_arrow_type(catalog.arrow_type(urn))
    )


def payload_column(data: str, kind: DataType) -> Column:
    """Return a payload as a column of a type, null where it does not fit.

    A VARIANT is null where a name is repeated in an object, which it cannot keep.
    """
    if isinstance(kind, VariantType):
        return F.try_parse_json(data)
    wanted = _arrow_type(kind)
    texts = from_arrow_type(wanted)
    if texts == kind:
        return typed_data(data, kind)
    [plain] = arrow_fields(StructType([StructField("data", texts)]))
    return _parsed(
        udf("typed_data", lambda column: typed(column, wanted).cast(plain.type), texts)(data), kind
    )


def _parsed(column: Column, kind: DataType) -> Column:
    """Return a column of JSON texts as one of a type with VARIANT in their place."""
    if isinstance(kind, VariantType):
        return F.try_parse_json(column)
    if isinstance(kind, StructType):
        fields = [_parsed(column.getField(field.name), field.dataType).alias(field.name) for field in kind]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _parsed(each, kind.elementType))
    if isinstance(kind, MapType):
        return F.transform_values(column, lambda _, each: _parsed(each, kind.valueType))
    return column


def _spark_type(kind: pa.DataType) -> DataType:
    if kind == JSON_VALUE:
        return VariantType()
    if pa.types.is_struct(kind):
        return StructType([StructField(field.name, _spark_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return ArrayType(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(from_arrow_type(kind.key_type), _spark_type(kind.item_type))
    return from_arrow_type(kind)


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, VariantType):
        return JSON_VALUE
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _arrow_type(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    [found] = arrow_fields(StructType([StructField("data", kind)]))
    return found.type
