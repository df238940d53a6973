"""Rows of a DataFrame as envelopes ready to publish."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING, Binding
from babelqueue_spark.envelope import ENVELOPE_SCHEMA, EnvelopeError, dead_letter, encode
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.options import Options, seconds

COLUMNS = (
    "job", "urn", "data", "trace_id", "queue", "attempts", "headers", "meta", "key", "delay", "deliver_at",
    "dead_letter", "body", "error", "delivery",
)  # fmt: skip
"""Columns a write takes. `error` and `delivery` come from a read and are not written."""

_META = ENVELOPE_SCHEMA.field("meta").type
_BLOCK = ENVELOPE_SCHEMA.field("dead_letter").type


@dataclass(frozen=True)
class Stamp:
    """What makes the ids and markers of a task's rows the same each time the task is run.

    Attributes:
        text: names query, batch and partition, or the run of a batch write and its partition.
    """

    text: str

    def ids(self, purpose: str, first_row: int, rows: int) -> list[str]:
        """UUIDs (version 8) of consecutive rows."""
        digest = hashlib.blake2b(f"{purpose} {self.text}".encode(), digest_size=10).hexdigest()
        prefix = f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{8 | int(digest[16], 16) & 3:x}{digest[17:]}"
        return [f"{prefix}-{row:012x}" for row in range(first_row, first_row + rows)]

    def marker(self, queue: str, first_row: int) -> str:
        """Names the chunk of rows that starts at `first_row` and goes to `queue`: 32 hex digits."""
        return hashlib.blake2b(f"{self.text} {first_row} {queue}".encode(), digest_size=16).hexdigest()


def to_messages(
    rows: pa.RecordBatch, first_row: int, stamp: Stamp, options: Options, binding: Binding
) -> dict[str, pa.RecordBatch]:
    """Envelopes by physical queue, in the order of the rows.

    Args:
        rows: columns out of `COLUMNS`; at least job (or urn) and data, or body with dead_letter.
        first_row: number of the first row within its task.
        stamp: source of missing ids.
        options: default queue, and where dead letters go.
        binding: its capabilities bound what headers, keys and delays may hold.

    Returns:
        queue → `OUTGOING` batch.

    Raises:
        BabelQueueError: a row lacks what it needs, or the broker cannot carry it; names the row.
    """
    count = rows.num_rows
    blocks = _blocks(rows)
    queues = _queues(rows, blocks, options)
    bodies = _bodies(rows, blocks, queues, first_row, stamp)
    physical = [_target(queues[i], blocks[i], options, binding) for i in range(count)]
    outgoing = pa.RecordBatch.from_arrays(
        [bodies, _headers(rows, binding), _keys(rows, binding), _delays(rows, binding)], schema=OUTGOING
    )
    if len(set(physical)) == 1:
        return {physical[0]: outgoing}
    targets = pa.array(physical)
    return {name: outgoing.filter(pc.equal(targets, name)) for name in dict.fromkeys(physical)}


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    index = rows.schema.get_field_index(name)
    return rows.column(index) if index >= 0 else None


def _texts(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    column = _column(rows, name)
    return pa.nulls(rows.num_rows, pa.string()) if column is None else column.cast(pa.string())


def _child(rows: pa.RecordBatch, parent: str, name: str, kind: pa.DataType) -> pa.Array:
    column = _column(rows, parent)
    if column is None or column.type.get_field_index(name) < 0:
        return pa.nulls(rows.num_rows, kind)
    return pc.struct_field(column, name).cast(kind)


# -- queues ------------------------------------------------------------------------------------------


def _queues(rows: pa.RecordBatch, blocks: Sequence[dict[str, Any] | None], options: Options) -> list[str]:
    default = options.queue[0] if options.queue else None
    queues = []
    for row, (queue, block) in enumerate(zip(_texts(rows, "queue").to_pylist(), blocks, strict=True)):
        name = (block or {}).get("original_queue") or queue or default
        if not name:
            raise BabelQueueError(f"row {row} names no queue: set option 'queue', or fill the column 'queue'")
        queues.append(name)
    return queues


def _target(queue: str, block: dict[str, Any] | None, options: Options, binding: Binding) -> str:
    if block is None:
        return queue
    return options.dead_letter_queue or binding.dead_letter_name(queue, options.dead_letter_style)


# -- bodies ------------------------------------------------------------------------------------------


def _blocks(rows: pa.RecordBatch) -> list[dict[str, Any] | None]:
    column = _column(rows, "dead_letter")
    return [None] * rows.num_rows if column is None else column.to_pylist()


def _bodies(
    rows: pa.RecordBatch,
    blocks: Sequence[dict[str, Any] | None],
    queues: Sequence[str],
    first_row: int,
    stamp: Stamp,
) -> pa.BinaryArray:
    kept = _texts_or_bytes(rows)
    dead = pa.array([block is not None for block in blocks])
    as_received = pc.and_(dead, pc.is_valid(kept))
    encoded = _encode(rows, pc.invert(as_received), queues, first_row, stamp)
    bodies = pc.if_else(as_received, kept, encoded)
    if not pc.any(dead).as_py():
        return bodies
    annotated = dead_letter(bodies.filter(dead), _complete(rows, blocks, queues))
    return pc.replace_with_mask(bodies, dead, annotated.cast(pa.binary()))


def _texts_or_bytes(rows: pa.RecordBatch) -> pa.BinaryArray:
    column = _column(rows, "body")
    return pa.nulls(rows.num_rows, pa.binary()) if column is None else column.cast(pa.binary())


def _encode(
    rows: pa.RecordBatch, wanted: pa.BooleanArray, queues: Sequence[str], first_row: int, stamp: Stamp
) -> pa.BinaryArray:
    """Encode the rows where `wanted`; null elsewhere."""
    if not pc.any(wanted).as_py():
        return pa.nulls(rows.num_rows, pa.binary())
    messages = _messages(rows, queues, first_row, stamp)
    everything = pc.all(wanted).as_py()
    try:
        encoded = encode(messages if everything else messages.filter(wanted)).cast(pa.binary())
    except EnvelopeError as error:
        raise BabelQueueError(
            f"a row cannot be written as an envelope ({error}): mend it, or set its dead_letter column"
        ) from None
    if everything:
        return encoded
    return pc.replace_with_mask(pa.nulls(rows.num_rows, pa.binary()), wanted, encoded)


def _messages(rows: pa.RecordBatch, queues: Sequence[str], first_row: int, stamp: Stamp) -> pa.RecordBatch:
    count = rows.num_rows
    job = pc.coalesce(_texts(rows, "job"), _texts(rows, "urn"))
    trace_id = _minted(_texts(rows, "trace_id"), "trace_id", first_row, stamp)
    now = pa.scalar(time.time_ns() // 1_000_000 * 1000, _META.field("created_at").type)
    meta = {
        "id": _minted(_child(rows, "meta", "id", pa.string()), "meta.id", first_row, stamp),
        "queue": pc.coalesce(_child(rows, "meta", "queue", pa.string()), pa.array(queues, pa.string())),
        "lang": pc.fill_null(_child(rows, "meta", "lang", pa.string()), "python"),
        "schema_version": pc.fill_null(_child(rows, "meta", "schema_version", pa.int32()), 1),
        "created_at": pc.fill_null(_child(rows, "meta", "created_at", now.type), now),
        "extra": _child(rows, "meta", "extra", _META.field("extra").type),
    }
    attempts = _column(rows, "attempts")
    columns = {
        "job": job,
        "trace_id": trace_id,
        "data": _data(rows),
        "meta": pa.StructArray.from_arrays([meta[field.name] for field in _META], fields=list(_META)),
        "attempts": pa.repeat(pa.scalar(0, pa.int32()), count)
        if attempts is None
        else pc.fill_null(attempts.cast(pa.int32()), 0),
    }
    return pa.RecordBatch.from_pydict(columns)


def _minted(given: pa.StringArray, purpose: str, first_row: int, stamp: Stamp) -> pa.StringArray:
    if not given.null_count:
        return given
    return pc.coalesce(given, pa.array(stamp.ids(purpose, first_row, len(given)), pa.string()))


def _data(rows: pa.RecordBatch) -> pa.StringArray:
    column = _column(rows, "data")
    if column is None or pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _texts(rows, "data")
    encoder = msgspec.json.Encoder(decimal_format="string")
    return pa.array(
        [
            None if value is None else encoder.encode(_plain(value, column.type, row)).decode()
            for row, value in enumerate(column.to_pylist())
        ],
        pa.string(),
    )


def _plain(value: Any, kind: pa.DataType, row: int) -> Any:
    """A value without Arrow's shapes: maps as objects, null fields left out as Spark's `to_json` does."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            field.name: _plain(value[field.name], field.type, row)
            for field in kind
            if value[field.name] is not None
        }
    if pa.types.is_map(kind):
        return {str(key): _plain(item, kind.item_type, row) for key, item in value}
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type, row) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise BabelQueueError(f"row {row} has {value} in its data, which JSON cannot carry")
    return value


def _complete(
    rows: pa.RecordBatch, blocks: Sequence[dict[str, Any] | None], queues: Sequence[str]
) -> pa.StructArray:
    """The dead-letter blocks that are there, with what they leave out filled in."""
    attempts = _column(rows, "attempts")
    counts = [0] * rows.num_rows if attempts is None else attempts.to_pylist()
    now = datetime.fromtimestamp(time.time()).astimezone()
    complete = [
        {
            "reason": block.get("reason") or "failed",
            "error": block.get("error"),
            "exception": block.get("exception"),
            "failed_at": block.get("failed_at") or now,
            "original_queue": queues[row],
            "attempts": counts[row] or 0 if block.get("attempts") is None else block["attempts"],
            "lang": block.get("lang") or "python",
        }
        for row, block in enumerate(blocks)
        if block is not None
    ]
    return pa.array(complete, _BLOCK)


# -- beside the body ---------------------------------------------------------------------------------


def _headers(rows: pa.RecordBatch, binding: Binding) -> pa.MapArray:
    kind = OUTGOING.field("headers").type
    column = _column(rows, "headers")
    if column is None:
        return pa.nulls(rows.num_rows, kind)
    if not binding.capabilities.headers and any(column.to_pylist()):
        raise BabelQueueError(f"broker '{binding.name}' keeps no headers: drop the column 'headers'")
    return column.cast(kind)


def _keys(rows: pa.RecordBatch, binding: Binding) -> pa.StringArray:
    keys = _texts(rows, "key")
    if not binding.capabilities.keys and keys.null_count < len(keys):
        raise BabelQueueError(f"broker '{binding.name}' keeps no keys: drop the column 'key'")
    return keys


def _delays(rows: pa.RecordBatch, binding: Binding) -> pa.Int64Array:
    """Milliseconds from now, out of `delay` (seconds, an interval, or text) or `deliver_at`."""
    delays = _relative(_column(rows, "delay"), rows.num_rows)
    moments = _column(rows, "deliver_at")
    if moments is not None:
        now = pa.scalar(time.time_ns() // 1000, pa.int64())
        ahead = pc.subtract(moments.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), now)
        delays = pc.coalesce(delays, pc.divide(pc.max_element_wise(ahead, 0), 1000))
    longest = pc.max(delays).as_py()
    allowed = binding.capabilities.max_delay
    if allowed is not None and longest is not None and longest > allowed:
        raise BabelQueueError(
            f"broker '{binding.name}' delays a message by {allowed / 1000:g} s at most, "
            f"but a row asks for {longest / 1000:g} s"
        )
    return delays


def _relative(column: pa.Array | None, count: int) -> pa.Int64Array:
    if column is None:
        return pa.nulls(count, pa.int64())
    if (
        pa.types.is_floating(column.type)
        or pa.types.is_integer(column.type)
        or pa.types.is_decimal(column.type)
    ):
        return pc.multiply(column.cast(pa.float64()), 1000.0).cast(pa.int64(), safe=False)
    return pa.array([_milliseconds(value, row) for row, value in enumerate(column.to_pylist())], pa.int64())


def _milliseconds(value: Any, row: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        return int(value.total_seconds() * 1000)
    try:
        return int(seconds(str(value)) * 1000)
    except ValueError as error:
        raise BabelQueueError(f"row {row} has the delay '{value}', but a delay is {error}") from None
