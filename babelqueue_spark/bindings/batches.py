"""Messages as Arrow record batches: the two schemas that bindings speak, and helpers for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.envelope import ENVELOPE_SCHEMA, decode
from babelqueue_spark.envelope.columns import INT32, TIMESTAMP, timestamps, within

T = TypeVar("T")

_MILLISECONDS = pa.timestamp("ms", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.string())

DELIVERIES = pa.schema(
    [
        ("body", pa.binary()),
        ("headers", HEADERS),
        ("id", pa.string()),
        ("count", pa.int32()),
        ("redelivered", pa.bool_()),
        ("enqueued_at", TIMESTAMP),
        ("key", pa.string()),
        ("receipt", pa.binary()),
    ]
)
"""What a claim or a browse returns, a row a message.

`body`: the bytes of the envelope as received (never null). `headers`: what travelled beside it.
`id`: the broker's name for the message, the same on each redelivery where the broker has one.
`count`: deliveries so far including this one. `redelivered`: false only where the broker knows
that this is the first delivery, no claim of it having been released either. `key`: partition key,
group or session. `receipt`: whatever
`acknowledge` and `release` need; opaque, and never shown to users.
"""

OUTGOING = pa.schema(
    [("body", pa.binary()), ("headers", HEADERS), ("key", pa.string()), ("delay", pa.int64())]
)
"""What `publish` takes, a row a message. `delay` is in milliseconds from now; null and 0 mean none.

A batch may have the column `ENVELOPE_COLUMN` behind these.
"""

ENVELOPE_COLUMN = pa.field(
    "envelope", pa.struct([ENVELOPE_SCHEMA.field(name) for name in ("job", "trace_id", "meta", "attempts")])
)
"""What stands in each body, for bindings that show it beside the body; `envelopes_of` gives it anyway."""


def deliveries(
    rows: int,
    *,
    count: Sequence[int | None] | None = None,
    enqueued_at: Sequence[int | None] | None = None,
    **columns: Any,
) -> pa.RecordBatch:
    """Return a `DELIVERIES` batch of `rows` rows; columns left out are null.

    Args:
        count: null beyond 32 bits.
        enqueued_at: milliseconds since 1970; null beyond the years 1 to 9999.
        columns: the other columns.
    """
    if count is not None:
        columns["count"] = [within(INT32, each) for each in count]
    if enqueued_at is not None:
        columns["enqueued_at"] = timestamps(enqueued_at)
    return _batch(DELIVERIES, rows, columns)


def milliseconds(times: pa.TimestampArray) -> pa.Int64Array:
    """Return times as milliseconds since 1970."""
    return times.cast(_MILLISECONDS, safe=False).cast(pa.int64())


def outgoing(rows: int, **columns: Any) -> pa.RecordBatch:
    """Return an `OUTGOING` batch of `rows` rows; columns left out are null."""
    return _batch(OUTGOING, rows, columns)


def _batch(schema: pa.Schema, rows: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = []
    for column in schema:
        values = columns.get(column.name)
        if values is None:
            arrays.append(pa.nulls(rows, column.type))
        elif isinstance(values, pa.Array):
            arrays.append(values.cast(column.type))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def envelopes_of(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Return the `ENVELOPE_COLUMN` of `OUTGOING` messages: the column, else read from the bodies."""
    if ENVELOPE_COLUMN.name in messages.schema.names:
        return pa.RecordBatch.from_struct_array(messages.column(ENVELOPE_COLUMN.name))
    return decode(messages.column("body"))


def names_by_content(deliveries: pa.RecordBatch) -> list[str]:
    """Digests of id and body, for `identities` where the broker has no name of its own for a message."""
    pairs = zip(*(deliveries.column(name).to_pylist() for name in ("id", "body")), strict=True)
    return [
        hashlib.blake2b((name or "").encode() + b"\0" + body, digest_size=16).hexdigest()
        for name, body in pairs
    ]


def fitting(sizes: Iterable[int], max_bytes: int, *, least: int = 1) -> int:
    """Return how many messages of these sizes, from the first on, fit into `max_bytes`; `least` always do."""
    kept, size = 0, 0
    for each in sizes:
        size += each
        if kept >= least and size > max_bytes:
            break
        kept += 1
    return kept


def chunks(items: Iterable[T], size_of: Callable[[T], int], most: int, max_bytes: int) -> Iterator[list[T]]:
    """Yield items in order, as many at once as keep to both bounds; one at least."""
    chunk: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        if chunk and (len(chunk) == most or size + own > max_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += own
    if chunk:
        yield chunk


def counted_attempts(sent: pa.Int32Array, counts: pa.Int32Array) -> pa.Int32Array:
    """Return the larger of the count a message was sent with and of its earlier deliveries; ignores nulls.

    Args:
        sent: the count in the body or in a header.
        counts: deliveries so far including this one, as in `DELIVERIES`.
    """
    return pc.max_element_wise(sent, pc.subtract(counts, 1), skip_nulls=True)


def total_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of all bodies in a `DELIVERIES` or `OUTGOING` batch."""
    return int(pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0)
