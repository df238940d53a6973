"""Publish messages: cut them into chunks, name each chunk by an idempotency key, hand it to the binding.

Sink, worker, redrive and the publish job all publish here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.rows.ids import IdSource


def publish(
    binding: BaseBinding,
    queue: str,
    messages: pa.RecordBatch,
    *,
    keys: IdSource | None = None,
    first_row: int = 0,
) -> int:
    """Publish messages in order; returns how many, without the chunks that had been published before.

    Args:
        binding: publishes at most `publish_batch` messages at once.
        queue: where all of them go.
        messages: an `OUTGOING` batch of any length.
        keys: source of the idempotency keys, for brokers that take them; None = a repeat is published again.
        first_row: number of the first message among those that `keys` names.

    Raises:
        BrokerError: the broker refused a chunk; those before it are published.
    """
    parts = publish_parts(binding, queue, messages, keys=keys, first_row=first_row)
    return sum(published for _, published in parts)


def publish_parts(
    binding: BaseBinding,
    queue: str,
    messages: pa.RecordBatch,
    *,
    keys: IdSource | None = None,
    first_row: int = 0,
) -> Iterator[tuple[range, int]]:
    """Publish as `publish` does; yields the rows of each chunk, once it is published, and what it counts."""
    can = binding.capabilities
    for first in range(0, messages.num_rows, can.publish_batch):
        chunk = messages.slice(first, can.publish_batch)
        key = keys.idempotency_key(queue, first_row + first) if keys and can.publish_once else None
        yield range(first, first + chunk.num_rows), binding.publish(queue, chunk, idempotency_key=key)


def in_chunks(batches: Iterable[pa.RecordBatch], binding: BaseBinding) -> Iterator[pa.RecordBatch]:
    """Cut rows into batches of `publish_batch`, however they came: a repeated task makes the same chunks."""
    size = binding.capabilities.publish_batch
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= size:
            table = pa.Table.from_batches(waiting)
            whole = rows - rows % size
            for first in range(0, whole, size):
                yield _one_batch(table.slice(first, size))
            waiting = table.slice(whole).to_batches()
            rows -= whole
    if rows:
        yield _one_batch(pa.Table.from_batches(waiting))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    combined: pa.RecordBatch = table.combine_chunks().to_batches()[0]
    return combined
