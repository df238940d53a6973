"""Encode rows of a DataFrame as bodies, and fill in what an envelope needs and a row leaves out."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import ENVELOPE_COLUMN
from babelqueue_spark.connector.rows.dead_letters import dead_letter_blocks
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.payloads import texts_of_payloads
from babelqueue_spark.envelope import ENVELOPE_SCHEMA, EnvelopeError, dead_letter, encode
from babelqueue_spark.envelope.columns import BLANKS, TIMESTAMP
from babelqueue_spark.errors import BabelQueueError

_META = ENVELOPE_SCHEMA.field("meta").type
_BLOCK = ENVELOPE_SCHEMA.field("dead_letter").type
_MOST_ATTEMPTS = 2**31 - 1


def bodies(
    rows: pa.RecordBatch,
    blocks: pa.Array,
    queues: pa.StringArray,
    first_row: int,
    ids: IdSource,
    wanted: pa.BooleanArray | None = None,
) -> pa.BinaryArray:
    """Encode the body of each row, as `bodies_and_envelopes` does."""
    return bodies_and_envelopes(rows, blocks, queues, first_row, ids, wanted)[0]


def bodies_and_envelopes(
    rows: pa.RecordBatch,
    blocks: pa.Array,
    queues: pa.StringArray,
    first_row: int,
    ids: IdSource,
    wanted: pa.BooleanArray | None = None,
) -> tuple[pa.BinaryArray, pa.StructArray | None]:
    """Encode the body of each row.

    Args:
        rows: `job` (or `urn`) and `data`, or `body` and `dead_letter`; optionally `trace_id`, `meta`,
            `attempts`.
        blocks: `blocks_of(rows)`.
        queues: the queue of each row.
        first_row: number of the first row within its task.
        ids: source of missing ids.
        wanted: which rows to write; the others have no body. All, when it is not given.

    Returns:
        The bodies, and the `ENVELOPE_COLUMN` that each was made of; None unless all were made here.

    Raises:
        BabelQueueError: a row lacks what an envelope needs; names the row.
    """
    kept = received_of(rows)
    dead = blocks.is_valid()
    as_received = pc.and_(dead, pc.is_valid(kept))
    made = pc.invert(as_received) if wanted is None else pc.and_not(wanted, as_received)
    encoded, envelopes = _encode(rows, made, queues, first_row, ids)
    if not pc.any(dead).as_py():
        return encoded, envelopes
    bodies = pc.if_else(as_received, kept, encoded)
    annotated = dead_letter(bodies.filter(dead), _completed(rows, blocks, queues, first_row))
    return pc.replace_with_mask(bodies, dead, annotated.cast(pa.binary())), None


def blocks_of(rows: pa.RecordBatch) -> pa.StructArray:
    """Return the dead letter block of each row, or null."""
    column = column_of(rows, "dead_letter")
    return pa.nulls(rows.num_rows, _BLOCK) if column is None else column


def received_of(rows: pa.RecordBatch) -> pa.BinaryArray:
    """Return the body that each row was read with, or null."""
    column = column_of(rows, "body")
    return pa.nulls(rows.num_rows, pa.binary()) if column is None else column.cast(pa.binary())


def _encode(
    rows: pa.RecordBatch, wanted: pa.BooleanArray, queues: pa.StringArray, first_row: int, ids: IdSource
) -> tuple[pa.BinaryArray, pa.StructArray | None]:
    """Encode the rows where `wanted`, null elsewhere; gives the envelopes too where all are wanted."""
    if not pc.any(wanted).as_py():
        return pa.nulls(rows.num_rows, pa.binary()), None
    messages = _messages(rows, queues, first_row, ids)
    everything = pc.all(wanted).as_py()
    try:
        encoded = encode(messages if everything else messages.filter(wanted)).cast(pa.binary())
    except EnvelopeError as error:
        row = first_row + pc.indices_nonzero(wanted)[error.row].as_py()
        raise BabelQueueError(
            f"a row cannot be written as an envelope (row {row}: {error.field} {error.reason}): "
            "correct it, or set its dead_letter column"
        ) from None
    if everything:
        return encoded, pa.StructArray.from_arrays(
            [messages.column(field.name) for field in ENVELOPE_COLUMN.type], fields=list(ENVELOPE_COLUMN.type)
        )
    return pc.replace_with_mask(pa.nulls(rows.num_rows, pa.binary()), wanted, encoded), None


def _messages(rows: pa.RecordBatch, queues: pa.StringArray, first_row: int, ids: IdSource) -> pa.RecordBatch:
    job = pc.coalesce(texts_of(rows, "job"), texts_of(rows, "urn"))
    trace_id = _minted(texts_of(rows, "trace_id"), "trace_id", first_row, ids)
    now = pa.scalar(time.time_ns() // 1_000_000 * 1000, _META.field("created_at").type)
    meta = {
        "id": _minted(_child(rows, "meta", "id", pa.string()), "meta.id", first_row, ids),
        "queue": pc.coalesce(_child(rows, "meta", "queue", pa.string()), queues),
        "lang": pc.fill_null(_child(rows, "meta", "lang", pa.string()), "python"),
        "schema_version": pc.fill_null(_child(rows, "meta", "schema_version", pa.int32()), 1),
        "created_at": pc.fill_null(_child(rows, "meta", "created_at", now.type), now),
        "extra": _child(rows, "meta", "extra", _META.field("extra").type),
    }
    columns = {
        "job": pc.ascii_trim(job, characters=BLANKS),
        "trace_id": pc.ascii_trim(trace_id, characters=BLANKS),
        "data": data_of(rows, first_row),
        "meta": pa.StructArray.from_arrays([meta[field.name] for field in _META], fields=list(_META)),
        "attempts": pc.fill_null(attempts_of(rows, first_row), 0),
    }
    return pa.RecordBatch.from_pydict(columns)


def _minted(given: pa.StringArray, purpose: str, first_row: int, ids: IdSource) -> pa.StringArray:
    if not given.null_count:
        return given
    return pc.coalesce(given, ids.uuids(purpose, first_row, len(given)))


def data_of(rows: pa.RecordBatch, first_row: int) -> pa.StringArray:
    """Return the payloads of `rows` as JSON text."""
    column = column_of(rows, "data")
    if column is None or pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return texts_of(rows, "data")
    return texts_of_payloads(column, first_row)


def _completed(
    rows: pa.RecordBatch, blocks: pa.Array, queues: pa.StringArray, first_row: int
) -> pa.StructArray:
    """Return the dead-letter blocks that are there, with what they leave out filled in."""
    there = blocks.is_valid()
    counts = attempts_of(rows, first_row)

    def given(name: str) -> pa.Array:
        return child_of(blocks, name, _BLOCK.field(name).type).filter(there)

    return dead_letter_blocks(
        pc.fill_null(not_empty(given("reason")), "failed"),
        original_queues=queues.filter(there),
        attempts=pc.coalesce(given("attempts"), counts.filter(there), pa.scalar(0, pa.int32())),
        errors=given("error"),
        exceptions=given("exception"),
        failed_at=given("failed_at"),
        langs=not_empty(given("lang")),
    )


def attempts_of(rows: pa.RecordBatch, first_row: int) -> pa.Int32Array:
    """Return the attempts of `rows`, null where there is no such column; raise for one beyond 32 bits."""
    column = column_of(rows, "attempts")
    if column is None:
        return pa.nulls(rows.num_rows, pa.int32())
    try:
        return column.cast(pa.int32())
    except pa.ArrowInvalid:
        beyond = [value is not None and not 0 <= int(value) <= _MOST_ATTEMPTS for value in column.to_pylist()]
        row = beyond.index(True)
        raise BabelQueueError(
            f"row {first_row + row} has {column[row]} attempts, but they are from 0 to {_MOST_ATTEMPTS}"
        ) from None


def column_of(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column of `rows`, or None where there is no such column."""
    index = rows.schema.get_field_index(name)
    return rows.column(index) if index >= 0 else None


def texts_of(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    """Return a column of `rows` as text, null where there is no such column."""
    column = column_of(rows, name)
    return pa.nulls(rows.num_rows, pa.string()) if column is None else column.cast(pa.string())


def _child(rows: pa.RecordBatch, parent: str, name: str, kind: pa.DataType) -> pa.Array:
    column = column_of(rows, parent)
    return pa.nulls(rows.num_rows, kind) if column is None else child_of(column, name, kind)


def child_of(column: pa.StructArray, name: str, kind: pa.DataType) -> pa.Array:
    """Return a field of a struct column as `kind`, null where there is no such field."""
    if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
        return pa.nulls(len(column), kind)
    field = pc.struct_field(column, name)
    return moments_of(field) if pa.types.is_timestamp(kind) else field.cast(kind)


def moments_of(column: pa.Array) -> pa.TimestampArray:
    """Return a column as timestamps; whole numbers are milliseconds since 1970, as an envelope has them."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    return column.cast(TIMESTAMP)


def not_empty(texts: Any) -> Any:
    """Texts, null where they are empty."""
    return pc.if_else(pc.equal(texts, ""), None, texts)
