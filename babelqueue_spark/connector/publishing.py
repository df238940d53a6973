"""Publish messages: cut them into chunks, name each chunk by an idempotency key, hand it to the binding.

Sink, worker, redrive and the publish job all publish here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.headers import named_by_headers
from babelqueue_spark.connector.message_log import MessageLog
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.size_limits import without_large_blocks
from babelqueue_spark.envelope.scan import octets_of
from babelqueue_spark.errors import (
    BabelQueueError,
    BrokerAuthenticationError,
    BrokerFullError,
    BrokerUnreachableError,
    MessageTooLargeError,
    QueueForbiddenError,
    QueueNotFoundError,
)

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 20
"""Most bytes of text and binary in a chunk; a column of Arrow ends at 2 GiB."""

_PART = 100
"""Messages that go at once where no key drops a repeat: what is confirmed is not published again."""
OF_ONE_QUEUE = (BrokerFullError, QueueForbiddenError)
"""What no message is the cause of, and what other queues may not have."""
_OF_NO_MESSAGE = (BrokerUnreachableError, BrokerAuthenticationError, *OF_ONE_QUEUE)

Bytes = npt.NDArray[np.integer]


def publish(
    binding: BaseBinding,
    queue: str,
    messages: pa.RecordBatch,
    *,
    keys: IdSource | None = None,
    first_row: int = 0,
    lines: MessageLog | None = None,
) -> int:
    """Publish messages in order; returns how many, without the chunks that had been published before.

    Args:
        binding: publishes at most `publish_batch` messages at once.
        queue: where all of them go.
        messages: an `OUTGOING` batch of any length.
        keys: source of the idempotency keys, for brokers that take them; None = a repeat is published again.
        first_row: number of the first message among those that `keys` names.
        lines: get a line about each message that is published.

    Raises:
        BrokerError: the broker refused a chunk; those before it are published.
    """
    parts = publish_parts(binding, queue, messages, keys=keys, first_row=first_row, lines=lines)
    return sum(published for _, published in parts)


def publish_parts(
    binding: BaseBinding,
    queue: str,
    messages: pa.RecordBatch,
    *,
    keys: IdSource | None = None,
    first_row: int = 0,
    most: int | None = None,
    lines: MessageLog | None = None,
) -> Iterator[tuple[range, int]]:
    """Publish as `publish` does; yields the rows of each chunk, once it is published, and what it counts.

    Where the broker says only now that a message is too large, its chunk goes without the largest dead-letter
    blocks. `most` bounds the rows of a chunk further.
    """
    if binding.config.native:
        messages = named_by_headers(messages)
    can = binding.capabilities
    size = min(can.publish_batch, most or can.publish_batch)
    for first in range(0, messages.num_rows, size):
        chunk = messages.slice(first, size)
        key = keys.idempotency_key(queue, first_row + first) if keys and can.publish_once else None
        published = _publish_chunk(binding, queue, chunk, key)
        if lines is not None and published:
            lines.write_all("published", chunk, queue)
        yield range(first, first + chunk.num_rows), published


def publish_or_singly(
    binding: BaseBinding,
    queue: str,
    messages: pa.RecordBatch,
    *,
    lines: MessageLog,
    keys: Callable[[int | None], IdSource | None] = lambda _: None,
    singly: bool = False,
    note: Callable[[int], object] = lambda _: None,
) -> Iterator[tuple[range, BabelQueueError | None]]:
    """Publish messages together; what is left once the broker refuses that goes one by one.

    Yields rows, with the error where the broker cannot carry them.

    Args:
        binding: publishes them.
        queue: where all of them go.
        messages: an `OUTGOING` batch.
        lines: get a line about each message.
        keys: a row that goes alone, None = all → the source of idempotency keys.
        singly: whether it was noted that they go one by one.
        note: note it of the messages from a row on; called before the first of them goes.

    Raises:
        BrokerError: the broker or the queue takes nothing now; what was not yielded waits.
    """
    done = 0
    if not singly:
        try:
            most = None if binding.capabilities.publish_once else _PART
            for part, _ in publish_parts(binding, queue, messages, keys=keys(None), most=most, lines=lines):
                done = part.stop
                yield part, None
            return
        except QueueNotFoundError as error:
            yield range(done, messages.num_rows), error
            return
        except _OF_NO_MESSAGE:
            raise
        except BabelQueueError:
            note(done)
    for row in range(done, messages.num_rows):
        alone = messages.slice(row, 1)
        yield range(row, row + 1), _refusal(binding, queue, alone, keys(row), lines)


def _refusal(
    binding: BaseBinding, queue: str, message: pa.RecordBatch, keys: IdSource | None, lines: MessageLog
) -> BabelQueueError | None:
    """Publish one message; returns why the broker cannot carry it."""
    try:
        publish(binding, queue, message, keys=keys, lines=lines)
    except _OF_NO_MESSAGE:
        raise
    except BabelQueueError as error:
        return error
    return None


def _publish_chunk(binding: BaseBinding, queue: str, chunk: pa.RecordBatch, key: str | None) -> int:
    try:
        return binding.publish(queue, chunk, idempotency_key=key)
    except MessageTooLargeError as error:
        smaller = chunk if binding.config.native else without_large_blocks(chunk)
        if smaller.equals(chunk):
            raise
        logger.warning("dead letters go without a block, which made them too large: %s", error)
        # In the same order: a key stands for the same messages, and what it has published is dropped.
        return binding.publish(queue, smaller, idempotency_key=key)


def in_chunks(batches: Iterable[pa.RecordBatch], binding: BaseBinding) -> Iterator[pa.RecordBatch]:
    """Cut rows into batches of `publish_batch` rows and `CHUNK_BYTES`, or one row that is larger.

    Where they are cut depends on the rows alone, not on how they came: a repeated task makes the same chunks.
    """
    most = binding.capabilities.publish_batch
    waiting: list[pa.RecordBatch] = []
    rows = held = 0
    for batch in batches:
        ends = np.concatenate([[0], np.cumsum(_row_bytes(batch))])
        start = 0
        while start < batch.num_rows:
            fitting = int(np.searchsorted(ends, ends[start] + CHUNK_BYTES - held, side="right")) - 1
            stop = min(batch.num_rows, start + most - rows, max(fitting, start + (rows == 0)))
            if stop > start:
                waiting.append(batch.slice(start, stop - start))
            rows, held, start = rows + stop - start, held + ends[stop] - ends[start], stop
            if rows == most or start < batch.num_rows:
                yield _one_batch(waiting)
                waiting, rows, held = [], 0, 0
    if rows:
        yield _one_batch(waiting)


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    [combined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return combined


def _row_bytes(batch: pa.RecordBatch) -> Bytes:
    return sum((_value_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def _value_bytes(values: pa.Array) -> Bytes:
    kind = values.type
    if pa.types.is_struct(kind):
        return sum(map(_value_bytes, values.flatten()), np.zeros(len(values), np.int64))
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        children = [values.keys, values.items] if pa.types.is_map(kind) else [values.values]
        ends = np.concatenate([[0], np.cumsum(sum(map(_value_bytes, children)))])
        return np.asarray(np.diff(ends[values.offsets.to_numpy()]))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        if not values.null_count:
            return np.diff(octets_of(values)[1])
        return np.asarray(pc.fill_null(pc.binary_length(values), 0).to_numpy(), np.int64)
    return np.zeros(len(values), np.int64)
