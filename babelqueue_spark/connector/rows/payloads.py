"""The payload: which Spark types a read takes for `data`, and a column of `data` as the JSON of a write."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.types import VariantVal

from babelqueue_spark.errors import BabelQueueError, OptionError

_READ = (
    spark.BinaryType,
    spark.BooleanType,
    spark.DateType,
    spark.NumericType,
    spark.StringType,
    spark.TimestampNTZType,
    spark.TimestampType,
)
_WRITTEN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_decimal,
    pa.types.is_floating,
    pa.types.is_integer,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_null,
    pa.types.is_string,
    pa.types.is_timestamp,
)
_ENCODER = msgspec.json.Encoder()


def check_data(wanted: spark.DataType) -> None:
    """Raise `OptionError` for a type of `data` that no value of JSON has: VARIANT, INTERVAL and others."""
    if isinstance(wanted, spark.MapType):
        if not isinstance(wanted.keyType, spark.StringType):
            raise OptionError(
                f"'data' is wanted with {wanted.simpleString()}, but the keys of JSON are strings: "
                "use MAP<STRING, …>"
            )
        check_data(wanted.valueType)
    elif isinstance(wanted, spark.ArrayType):
        check_data(wanted.elementType)
    elif isinstance(wanted, spark.StructType):
        for field in wanted:
            check_data(field.dataType)
    elif not isinstance(wanted, _READ) or isinstance(wanted, spark.CharType | spark.VarcharType):
        name = wanted.simpleString()
        hint = "take try_parse_json(data) of it" if name == "variant" else "cast it"
        raise OptionError(
            f"'data' is wanted with {name}, which a read does not give: read it as STRING, and {hint}"
        )


def texts_of_payloads(column: pa.Array, first_row: int) -> pa.StringArray:
    """Encode a column of `data` as JSON texts: decimals as strings, binaries as base64, times in UTC.

    A VARIANT is written as its JSON. A time without a zone is taken for UTC.

    Args:
        column: any type that `check_payload_type` passes.
        first_row: number of the first row within its task, for errors.

    Raises:
        OptionError: the type has no form in JSON.
        BabelQueueError: a row holds NaN, infinity, or a time beyond the years 1 to 9999.
    """
    check_payload_type(column.type)
    return pa.array(
        [_text(value, column.type, row) for row, value in enumerate(column, first_row)], pa.string()
    )


def _text(value: pa.Scalar, kind: pa.DataType, row: int) -> str | None:
    try:
        return _ENCODER.encode(_plain(value.as_py(), kind, row)).decode() if value.is_valid else None
    except OverflowError:
        raise BabelQueueError(f"row {row} has a time in its data beyond the years 1 to 9999") from None


def check_payload_type(kind: pa.DataType, path: str = "data") -> None:
    """Raise `OptionError` for a type that has no form in JSON: an interval, TIME, a geometry."""
    if _is_variant(kind) or any(fits(kind) for fits in _WRITTEN):
        return
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        check_payload_type(kind.value_type, f"{path}[]")
    elif pa.types.is_map(kind) and (pa.types.is_string(kind.key_type) or pa.types.is_integer(kind.key_type)):
        check_payload_type(kind.item_type, f"{path}{{}}")
    elif pa.types.is_struct(kind) and not _is_marked(kind, "geometry", "geography"):
        for field in kind:
            check_payload_type(field.type, f"{path}.{field.name}")
    else:
        raise OptionError(
            f"{path} has the type {kind}, which has no form in JSON: cast it to STRING, or a map's keys"
        )


def _is_variant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind)) and _is_marked(kind, "variant")


def _is_marked(kind: pa.StructType, *marks: str) -> bool:
    """Return whether Spark's Arrow type stands for one of its own, by the metadata of a field."""
    return any(
        field.metadata and field.metadata.get(mark.encode()) == b"true" for field in kind for mark in marks
    )


def _plain(value: Any, kind: pa.DataType, row: int) -> Any:
    """Return a value without Arrow's shapes: maps as objects, no null fields, as Spark's `to_json`."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if _is_variant(kind):
            return msgspec.Raw(VariantVal(value["value"], value["metadata"]).toJson().encode())
        return {
            field.name: _plain(value[field.name], field.type, row)
            for field in kind
            if value[field.name] is not None
        }
    if pa.types.is_map(kind):
        return {str(key): _plain(item, kind.item_type, row) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(item, kind.value_type, row) for item in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and not math.isfinite(value):
        raise BabelQueueError(f"row {row} has {value} in its data, which JSON cannot carry")
    return float(str(np.float32(value))) if pa.types.is_float32(kind) else value
