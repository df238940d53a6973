"""The columns of a read, and how deliveries are turned into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.message_log import message_log
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.payloads import check_data
from babelqueue_spark.envelope import Reason
from babelqueue_spark.envelope.typed import typed
from babelqueue_spark.errors import OptionError
from babelqueue_spark.forms import ENVELOPES, Form
from babelqueue_spark.schemas.registry import Registry

_STRINGS = MapType(StringType(), StringType())


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


SCHEMA = _struct(
    job=StringType(),
    trace_id=StringType(),
    data=StringType(),
    meta=_struct(
        id=StringType(),
        queue=StringType(),
        lang=StringType(),
        schema_version=IntegerType(),
        created_at=TimestampType(),
        extra=_STRINGS,
    ),
    attempts=IntegerType(),
    dead_letter=_struct(
        reason=StringType(),
        error=StringType(),
        exception=StringType(),
        failed_at=TimestampType(),
        original_queue=StringType(),
        attempts=IntegerType(),
        lang=StringType(),
    ),
    error=StringType(),
    queue=StringType(),
    headers=_STRINGS,
    delivery=_struct(
        id=StringType(),
        count=IntegerType(),
        redelivered=BooleanType(),
        enqueued_at=TimestampType(),
        key=StringType(),
    ),
    body=BinaryType(),
)
"""The columns of a read; `.schema(…)` may ask for some of them, and for a typed `data`."""

# PySpark 4.1 has no time zone here: it takes UTC.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
ENVELOPE = StructType(SCHEMA.fields[: SCHEMA.fieldNames().index("error") + 1])
"""The columns of a read that come from the body."""

VIOLATION = StructField("violation", StringType())
"""The column that a read with a catalog has beside `error`: what is wrong with the payload, or null."""

_DELIVERY_FIELDS = ("id", "count", "redelivered", "enqueued_at", "key")


def schema_of_read(catalog: Registry | None) -> StructType:
    """Return the columns of a read with or without a catalog."""
    if catalog is None:
        return SCHEMA
    beside = SCHEMA.fieldNames().index("error") + 1
    return StructType([*SCHEMA.fields[:beside], VIOLATION, *SCHEMA.fields[beside:]])


def check_schema(wanted: StructType, catalog: Registry | None = None) -> None:
    """Raise `OptionError` unless `wanted` is a subset of `schema_of_read`, with any type for `data`."""
    known = {field.name: field.dataType for field in schema_of_read(catalog)}
    for field in wanted:
        if field.name not in known:
            raise OptionError(
                f"schema asks for a column '{field.name}', but a queue gives {', '.join(known)}: "
                "fields of the payload belong into a typed data column, 'data STRUCT<…>'"
            )
        if field.name != "data" and field.dataType != known[field.name]:
            raise OptionError(
                f"schema asks for '{field.name}' as {field.dataType.simpleString()}, "
                f"but it is {known[field.name].simpleString()}: only 'data' can be typed"
            )
        if field.name == "data":
            check_data(field.dataType)


def read_rows(
    batches: Iterable[tuple[str | pa.Array, pa.RecordBatch]],
    event: str,
    place: str,
    binding: BaseBinding,
    wanted: StructType,
    options: Options,
) -> Iterator[pa.RecordBatch]:
    """Turn deliveries into rows as `to_rows` does, with a line of the message log about each.

    Args:
        batches: the queue of a batch, or that of each row, and `DELIVERIES`.
        event: what happened to the messages.
        place: where they were, for the name of the log's file.
        binding: gives the rule for attempts.
        wanted: a schema that passed `check_schema`.
        options: those of the read.
    """
    catalog = options.catalog
    with message_log(options.message_log, f"{event}-{place}", binding, catalog) as lines:
        for queue, deliveries in batches:
            envelopes = _envelopes(deliveries, wanted, options, catalog)
            lines.write_all(event, deliveries, queue, envelopes)
            yield _rows(deliveries, queue, binding, wanted, envelopes)


def to_rows(
    deliveries: pa.RecordBatch,
    queue: str | pa.Array,
    binding: BaseBinding,
    wanted: StructType,
    options: Options,
) -> pa.RecordBatch:
    """Turn deliveries into the wanted columns, one row each, in Spark's Arrow types; no catalog judges them.

    Args:
        deliveries: a `DELIVERIES` batch.
        queue: the queue it was read from, or that of each row.
        binding: gives the rule for attempts; it is not connected here.
        wanted: a schema that passed `check_schema`.
        options: those of the read.
    """
    return _rows(deliveries, queue, binding, wanted, _envelopes(deliveries, wanted, options))


def _rows(
    deliveries: pa.RecordBatch,
    queue: str | pa.Array,
    binding: BaseBinding,
    wanted: StructType,
    envelopes: Mapping[str, pa.Array],
) -> pa.RecordBatch:
    schema = pa.schema(arrow_fields(wanted))
    arrays = []
    for field in schema:
        if field.name == "queue":
            array = pa.repeat(pa.scalar(queue), deliveries.num_rows) if isinstance(queue, str) else queue
        elif field.name == "delivery":
            array = pa.StructArray.from_arrays(
                [deliveries.column(name) for name in _DELIVERY_FIELDS], fields=list(field.type)
            )
        elif field.name in ("headers", "body"):
            array = deliveries.column(field.name)
        elif field.name == "attempts":
            array = binding.attempts(envelopes["attempts"], deliveries)
        elif field.name == "data" and "violation" in envelopes and field.type != pa.string():
            array = typed(envelopes["data"], field.type)
        else:
            array = envelopes[field.name]
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _envelopes(
    deliveries: pa.RecordBatch, wanted: StructType, options: Options, catalog: Registry | None = None
) -> dict[str, pa.Array]:
    return envelope_columns(deliveries, wanted, options.allow_empty_list_data, catalog, options.form)


def envelope_columns(
    messages: pa.RecordBatch,
    wanted: StructType,
    allow_list_data: bool,
    catalog: Registry | None = None,
    form: Form = ENVELOPES,
) -> dict[str, pa.Array]:
    """Decode the columns of the envelope; `data` gets its wanted type if that is not text.

    With a catalog, `data` stays text, and there is a column `violation`; a payload that has one has an
    `error` too.
    """
    types = {field.name: field.type for field in arrow_fields(wanted)}
    data_type = types.get("data", pa.string()) if catalog is None else pa.string()
    envelope = form.decode(messages, allow_list_data=allow_list_data, data_type=data_type)
    columns = dict(zip(envelope.schema.names, envelope.columns, strict=True))
    if catalog is not None:
        accepted = pc.if_else(columns["error"].is_null(), columns["job"], None)
        columns["violation"] = catalog.violations(accepted, columns["data"])
        refused = columns["violation"].is_valid()
        columns["error"] = pc.if_else(refused, str(Reason.INVALID_PAYLOAD), columns["error"])
    return columns


def arrow_fields(wanted: StructType) -> list[pa.Field]:
    """Return the columns in Spark's Arrow types, times in UTC."""
    return list(to_arrow_schema(wanted, **_IN_UTC))
