"""The binding of Amazon Kinesis."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings.aws_records import Record, check_sizes
from babelqueue_spark.bindings.batches import deliveries, milliseconds
from babelqueue_spark.bindings.contract import BindingConfig, Capabilities, LogBinding
from babelqueue_spark.bindings.kinesis.client import (
    LARGEST_RECORD,
    PAGE,
    KinesisClient,
    KinesisOptions,
    Shard,
)
from babelqueue_spark.envelope.columns import TIMESTAMP
from babelqueue_spark.errors import DataLossError, LogEndedError

CLOSED = 10**129
"""Offset of a shard that is closed, and was read to its end: no sequence number is as large."""
_LONGEST_KEY = 256
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_WINDOWS = (10, 100, 1_000, 10_000, 100_000)
"""Seconds before now, in which the last record of a shard is sought one after the other."""
_KEPT_SECONDS = 12 * 3600.0
"""Kinesis keeps records for at least a day: what came after this time is there."""


class KinesisBinding(LogBinding):
    """Kinesis, or what speaks its protocol.

    Partitions are the numbers of shards. An offset is the sequence number of the last record that was read;
    0 is before the first. A range goes from behind one to the other, itself included.
    """

    name = "kinesis"
    title = "Kinesis"
    counts_messages = False
    closed_offset = CLOSED
    capabilities = Capabilities(publish_batch=10_000, max_delay=0, browse="exact", ordered=True, keys=True)

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self._options = KinesisOptions.parse(config)
        self._kinesis = KinesisClient(self._options)
        self.silence_limit = self._options.silence_limit
        self._caught_up: dict[tuple[str, int], tuple[int, float]] = {}
        self._trimmed: set[tuple[str, int, int]] = set()

    def beginning_offsets(self, queue: str) -> dict[int, int]:
        return {shard.number: 0 for shard in self._kinesis.shards(queue)}

    def end_offsets(self, queue: str) -> dict[int, int]:
        shards = self._kinesis.shards(queue)
        ends = self._each(lambda shard: CLOSED if shard.closed else self._last(queue, shard), shards)
        return {shard.number: end for shard, end in zip(shards, ends, strict=True)}

    def next_offsets(self, queue: str, start: Mapping[int, int], messages: int) -> dict[int, int]:
        """Read behind `start` to find ends: shards share `messages` evenly, children wait for parents."""
        shards = self._kinesis.shards(queue)
        listed = {shard.number for shard in shards}
        ends = {number: CLOSED for number, offset in start.items() if offset == CLOSED}
        ends |= {shard.number: start.get(shard.number, 0) for shard in shards}
        readable = [
            shard
            for shard in shards
            if ends[shard.number] != CLOSED
            and all(start.get(parent) == CLOSED for parent in shard.parents if parent in listed)
        ]
        share = -(-messages // max(1, len(readable)))
        reached = self._each(lambda shard: self._reach(queue, shard, ends[shard.number], share), readable)
        return ends | {shard.number: end for shard, end in zip(readable, reached, strict=True)}

    def first_offset(self, queue: str, partition: int, offset: int) -> int:
        """0 where the record at `offset` is gone, though nothing behind it is."""
        return 0 if (queue, partition, offset) in self._trimmed else offset

    def read(self, queue: str, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """From behind the record `first` up to the record `last`, which must both be there."""
        if first == last:
            return
        shard = next((each for each in self._kinesis.shards(queue) if each.number == partition), None)
        if shard is None:
            raise DataLossError(f"stream '{queue}': shard {partition} is gone with its records")
        begun = not first
        for page in self._kinesis.pages(queue, shard.id, at=first):
            numbers = page.sequence_numbers
            if not begun and numbers:
                self._check_begin(queue, partition, first, numbers[0])
                begun = True
            rows = [row for row, number in enumerate(numbers) if first < number <= last]
            if rows:
                yield _received(partition, [page.records[row] for row in rows])
            if numbers and numbers[-1] >= last:
                return
            if page.last or (not numbers and not page.behind):
                self._check_end(queue, partition, first, last, begun=begun)
                return

    def commit_offsets(self, queue: str, offsets: Mapping[int, int]) -> None:
        """Kinesis keeps no offsets of readers."""
        del queue, offsets

    def backlog(self, queue: str) -> int:
        """Count by reading: Kinesis keeps no count."""
        return sum(batch.num_rows for batch in self.browse(queue))

    def missing(self, queue: str) -> str:
        return "" if self._kinesis.shards(queue) else f"the stream '{queue}'"

    def check_queue(self, queue: str) -> None:
        if not _NAME.fullmatch(queue):
            raise self.refused_name(queue, "use 1 to 128 letters, digits, hyphens, underscores and dots")

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        del queue
        records = self._records("", messages)
        return [row for row, record in enumerate(records) if record.size > LARGEST_RECORD]

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        del idempotency_key
        records = self._records(queue, messages)
        check_sizes(self._kinesis, queue, records, LARGEST_RECORD)
        if records:
            self._kinesis.put(queue, records)
        return len(records)

    def close(self) -> None:
        self._kinesis.close()

    def _records(self, queue: str, messages: pa.RecordBatch) -> list[Record]:
        pairs = zip(*(messages.column(name).to_pylist() for name in ("body", "key")), strict=True)
        return [self._record(queue, row, body, key or None) for row, (body, key) in enumerate(pairs)]

    def _record(self, queue: str, row: int, body: bytes, key: str | None) -> Record:
        if key is not None and len(key) > _LONGEST_KEY:
            raise self._kinesis.error(
                f"row {row} has a key of {len(key)} characters, and the limit is {_LONGEST_KEY}: shorten it",
                queue,
            )
        partition_key = key or uuid.uuid4().hex
        size = len(body) + len(partition_key.encode())
        return Record({"Data": body, "PartitionKey": partition_key}, size, key)

    def _last(self, queue: str, shard: Shard) -> int:
        """Return the last sequence number of an open shard, or 0."""
        now = time.time()
        for since in (*(now - window for window in _WINDOWS), None):
            last = 0
            for page in self._kinesis.pages(queue, shard.id, since=since):
                last = max([last, *page.sequence_numbers])
                if page.last or not page.behind:
                    break
            if last:
                return last
        return 0

    def _reach(self, queue: str, shard: Shard, start: int, messages: int) -> int:
        """Return how far so many records behind `start` reach; `CLOSED` where a closed shard has no more."""
        place = (queue, shard.number)
        known, counted, begun = start, 0, not start
        for page in self._kinesis.pages(queue, shard.id, at=start, limit=min(PAGE, messages + 1)):
            numbers = page.sequence_numbers
            at_end = page.last or (shard.closed and not numbers and not page.behind)
            if not begun and (numbers or at_end):
                begun = True
                self._note_trimmed(place, start, there=numbers[:1] == [start])
            new = [number for number in numbers if number > start][: messages - counted]
            known, counted = max([known, *new]), counted + len(new)
            if counted == messages:
                return known
            if at_end:
                return CLOSED
            if not page.behind and not shard.closed:
                self._caught_up[place] = (known, time.monotonic())
                return known
        return known

    def _note_trimmed(self, place: tuple[str, int], start: int, *, there: bool) -> None:
        """Remember that retention took the record at `start`, and nothing behind it."""
        offset, moment = self._caught_up.get(place, (0, 0.0))
        if not there and offset == start and time.monotonic() - moment < _KEPT_SECONDS:
            self._trimmed.add((*place, start))

    def _check_begin(self, queue: str, partition: int, first: int, found: int) -> None:
        if found != first:
            raise DataLossError(
                f"stream '{queue}': shard {partition} begins at {found}, and the record {first}, which was "
                "read last, is gone: records behind it may be gone too"
            )

    def _check_end(self, queue: str, partition: int, first: int, last: int, *, begun: bool) -> None:
        if not begun:
            raise DataLossError(
                f"stream '{queue}': shard {partition} is empty, and the record {first}, which was read last, "
                "is gone: records behind it may be gone too"
            )
        if last != CLOSED:
            raise LogEndedError(
                f"stream '{queue}': shard {partition} ends before {last}, which was there: the stream was "
                "created again, or retention was faster than the reader"
            )

    def _each(self, work: Any, shards: Sequence[Shard]) -> list[int]:
        if len(shards) < 2:
            return [work(shard) for shard in shards]
        self._kinesis.connected()
        with ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="kinesis") as threads:
            return list(threads.map(work, shards))


def _received(partition: int, records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    arrived = pa.array([record["ApproximateArrivalTimestamp"] for record in records], TIMESTAMP)
    return deliveries(
        len(records),
        body=[record["Data"] for record in records],
        id=[f"{partition}:{record['SequenceNumber']}" for record in records],
        enqueued_at=milliseconds(arrived).to_pylist(),
        key=[record["PartitionKey"] for record in records],
    )
