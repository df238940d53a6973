"""Readers of logs. A log keeps what was read: Spark's offsets are the log's own, and there is no journal."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import LogBinding, binding_class
from babelqueue_spark.connector.option_table import Offsets
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.reading import read_rows
from babelqueue_spark.connector.source.admission import BatchAdmission
from babelqueue_spark.connector.source.offsets import PartitionOffsets
from babelqueue_spark.connector.source.pace import Pace
from babelqueue_spark.connector.source.plan import WORTH_A_TASK
from babelqueue_spark.connector.source.spark_versions import (
    ADMISSION_CONTROL,
    SupportsTriggerAvailableNow,
    is_unlimited,
    max_rows,
)
from babelqueue_spark.errors import BrokerError, DataLossError, LogEndedError, OptionError

logger = logging.getLogger(__name__)

VERSION = 1
_MEANINGLESS = ("maxBytesPerTrigger", "maxFetchTime")
_EARLIEST, _LATEST = -2, -1
"""Offsets that users give for the two ends of a partition, as in Spark's Kafka source."""


@dataclass
class OffsetRange(InputPartition):
    """Tells one task to read a partition of a log from offset `first` up to `last`, which is not read."""

    queue: str
    partition: int
    first: int
    last: int


class LogReader(DataSourceReader):
    """Reads logs once, between two offsets."""

    def __init__(self, options: Options, schema: StructType) -> None:
        _check(options)
        if options.starting_offsets == "latest" or options.ending_offsets == "earliest":
            raise OptionError(
                "a batch reads nothing before 'earliest' and after 'latest': change the offsets"
            )
        self._log = _Log(options, schema)
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with self._log.binding() as binding:
            start = self._log.offsets(binding, self._options.starting_offsets or "earliest", "earliest")
            end = self._log.offsets(binding, self._options.ending_offsets or "latest", "latest")
            return self._log.ranges(binding, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._log.read(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as a stream. Spark's offsets say what a batch reads, so a replay reads the same.

    When Spark replays the first batch of a query, it asks again for the initial offset, which may have moved.
    So the end of that batch says where it began (`from`), and initial offsets are marked (`initial`), so that
    `partitions` takes `from` instead.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        _check(options)
        if options.ending_offsets is not None:
            raise OptionError("option 'endingOffsets' has no meaning for a stream: remove it")
        kind = binding_class(options.broker)
        if not ADMISSION_CONTROL and issubclass(kind, LogBinding) and not kind.counts_messages:
            raise OptionError(f"a stream of broker '{options.broker}' needs PySpark 4.2 or newer")
        self._log = _Log(options, schema)
        self._options = options
        self._driver: LogBinding | None = None
        self._pace = Pace()
        self._admission = BatchAdmission(options)
        self._tally: _Tally | None = None
        self._initial: PartitionOffsets | None = None
        self._known: PartitionOffsets | None = None
        self._last: dict[str, Any] | None = None
        self._ends = PartitionOffsets({})
        self._target: PartitionOffsets | None = None

    @property
    def _binding(self) -> LogBinding:
        if self._driver is None:
            self._driver = self._log.binding()
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        return {**_to_spark(self._start()), "initial": True}

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        """Say up to where a batch reads: at most `maxMessagesPerTrigger` messages after `start`.

        That is `start` itself while the batch has to wait for more messages.

        Spark 4.2 passes `start` and `limit`, 4.1 neither: there the first batch has no bound.
        """
        if self._last is not None and self._target is None and self._pace.resting():
            return self._last
        known = self._known if start is None else _from_spark(start)
        if known is None and not self._binding.counts_messages:
            known = self._start()
        unlimited = is_unlimited(limit)
        waits = self._target is None and not unlimited
        self._ends = self._find_ends(known, unlimited=unlimited, count=waits)
        if known is not None:
            known = self._log.still_valid(self._binding, known, self._ends)
        if waits and not self._admission.admits(self._waiting(known)):
            self._pace.polled(idle=True)
            self._last = start or self._last
            return self._last
        end = self._ends if known is None else self._end_after(known, unlimited=unlimited)
        first_batch = start is None or start.get("initial")
        begun = {"from": self._start().to_json()} if first_batch else {}
        self._last = {**_to_spark(end), **begun}
        return self._last

    def _find_ends(self, known: PartitionOffsets | None, *, unlimited: bool, count: bool) -> PartitionOffsets:
        minimum, most = self._admission.minimum, self._options.max_messages_per_trigger
        if count and minimum and known is not None and not self._binding.counts_messages:
            if self._tally is None or not self._tally.counts_from(known):
                self._tally = _Tally(self._log, known, minimum)
            return self._tally.advance(self._binding, most)
        return self._log.ends(self._binding, known, sys.maxsize if unlimited else most)

    def _waiting(self, known: PartitionOffsets | None) -> float:
        """Return how many messages lie between what was read and the ends."""
        if self._tally is not None:
            return self._tally.count
        return 0 if known is None else known.size_to(self._ends)

    def _end_after(self, known: PartitionOffsets, *, unlimited: bool) -> PartitionOffsets:
        end = self._ends if self._target is None else self._ends.capped_at(self._target)
        if not unlimited and self._binding.counts_messages:
            end = end.limited(known, self._options.max_messages_per_trigger)
        self._pace.polled(idle=not known.size_to(end))
        return end.at_least(known)

    def getDefaultReadLimit(self) -> Any:
        return max_rows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log.offsets(self._binding, "latest")

    def reportLatestOffset(self) -> dict[str, Any]:
        """Report the ends of the logs at the last poll, and the lag behind them where offsets tell."""
        held = self._admission.report()
        if not self._binding.counts_messages:
            return {**_to_spark(self._ends), **held}
        reached = _from_spark(self._last) if self._last is not None else PartitionOffsets({})
        lag = reached.sizes_to(self._ends)
        return {**_to_spark(self._ends), "lag": lag, "total": sum(lag.values()), **held}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = {"offsets": end.get("from", end["offsets"])} if start.get("initial") else start
        self._known = _from_spark(end)
        return self._log.ranges(self._binding, _from_spark(begin), self._known)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets that Spark has finished with to the broker, where monitors see them."""
        for queue, offsets in _from_spark(end).queues.items():
            try:
                self._binding.commit_offsets(queue, offsets)
            except BrokerError as error:
                logger.warning("monitors are not told how far the stream is: %s", error)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._log.read(partition)

    def _start(self) -> PartitionOffsets:
        if self._initial is None:
            wanted = self._options.starting_offsets or "earliest"
            self._initial = self._log.offsets(self._binding, wanted, "earliest")
        return self._initial

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}


class _Log:
    """Finds offsets of the logs named, and reads ranges of them, for a batch and for a stream."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def binding(self) -> LogBinding:
        binding = self._options.binding()
        assert isinstance(binding, LogBinding)
        return binding

    def offsets(
        self, binding: LogBinding, wanted: Offsets, others: Literal["earliest", "latest"] = "latest"
    ) -> PartitionOffsets:
        """Ask the broker for the `wanted` offsets, and for `others` in partitions that have none."""
        if wanted == "earliest":
            return PartitionOffsets(
                {queue: binding.beginning_offsets(queue) for queue in self._options.queue}
            )
        if wanted == "latest":
            return PartitionOffsets({queue: binding.end_offsets(queue) for queue in self._options.queue})
        assert not isinstance(wanted, str)
        unknown = sorted(wanted.keys() - set(self._options.queue))
        if unknown:
            raise OptionError(f"offsets are given for '{unknown[0]}', which is not in option 'queue'")
        named = {_EARLIEST: self.offsets(binding, "earliest"), _LATEST: self.offsets(binding, "latest")}
        found: dict[str, dict[int, int]] = {queue: {} for queue in self._options.queue}
        for queue, partitions in wanted.items():
            for number, offset in partitions.items():
                end = named.get(offset)
                found[queue][number] = offset if end is None else end.partitions(queue).get(number, 0)
        return PartitionOffsets(found).with_missing(self.offsets(binding, others))

    def ends(self, binding: LogBinding, known: PartitionOffsets | None, messages: int) -> PartitionOffsets:
        """Ask for the ends of the logs, or of the next batch where only the broker can count messages."""
        if known is None or binding.counts_messages:
            return self.offsets(binding, "latest")
        share = max(1, messages // len(self._options.queue))
        return PartitionOffsets(
            {
                queue: binding.next_offsets(queue, known.partitions(queue), share)
                for queue in self._options.queue
            }
        )

    def still_valid(
        self, binding: LogBinding, known: PartitionOffsets, ends: PartitionOffsets
    ) -> PartitionOffsets:
        """Return the offsets to read from: without queues that are not read any more, with new partitions.

        A partition that was created again, and so ends before what was read, is read from 0.
        """
        kept = {queue: dict(known.partitions(queue)) for queue in self._options.queue}
        for queue, partitions in kept.items():
            if all(ends.partitions(queue).get(number, -1) >= offset for number, offset in partitions.items()):
                continue
            newest = binding.high_watermarks(queue)
            for number, offset in list(partitions.items()):
                if ends.partitions(queue).get(number, -1) >= offset:
                    continue
                last = newest.get(number, 0)
                if last < offset:
                    self._report_data_loss(queue, number, f"ends at {last}, before {offset} which was read")
                    partitions[number] = 0 if number in newest else offset
        return self._with_new_partitions(binding, PartitionOffsets(kept), ends)

    def _with_new_partitions(
        self, binding: LogBinding, known: PartitionOffsets, ends: PartitionOffsets
    ) -> PartitionOffsets:
        """Add partitions that were created since, from their beginnings."""
        beginnings = {queue: binding.beginning_offsets(queue) for queue in known.queues_behind(ends)}
        return known.with_missing(PartitionOffsets(beginnings))

    def ranges(
        self, binding: LogBinding, start: PartitionOffsets, end: PartitionOffsets
    ) -> list[OffsetRange]:
        """Divide what lies between `start` and `end` into as many tasks as are worth it."""
        start = self._with_new_partitions(binding, start, end)
        found = [
            OffsetRange(queue, number, binding.first_offset(queue, number, first), last)
            for queue, partitions in end.queues.items()
            for number, last in partitions.items()
            if (first := start.partitions(queue).get(number, 0)) != last
        ]
        beginnings = {queue: binding.beginning_offsets(queue) for queue in {each.queue for each in found}}
        found = [self._still_there(each, beginnings[each.queue].get(each.partition)) for each in found]
        divisible = binding.counts_messages and "numPartitions" in self._options.given
        pieces = self._options.num_partitions if divisible else 0
        size = sum(each.last - each.first for each in found)
        return [piece for each in found for piece in _split(each, size, pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        place = f"{partition.queue}-{partition.partition}-{partition.first}"
        with self.binding() as binding:
            origin = binding.origin(partition.queue)
            read = ((origin, batch) for batch in self._batches(binding, partition))
            yield from read_rows(read, "read", place, binding, self._schema, self._options)

    def count(
        self, binding: LogBinding, start: PartitionOffsets, end: PartitionOffsets, enough: float
    ) -> int:
        """Count the messages between two offsets by reading them, until there are `enough`."""
        found = 0
        for part in self.ranges(binding, start, end):
            for batch in self._batches(binding, part):
                found += int(batch.num_rows)
                if found >= enough:
                    return found
        return found

    def _batches(self, binding: LogBinding, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._from_what_is_left(binding, part)
        except LogEndedError as error:
            if self._options.fail_on_data_loss:
                raise
            logger.warning("%s; going on, because failOnDataLoss is false", error)

    def _from_what_is_left(self, binding: LogBinding, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        begun = False
        try:
            for batch in binding.read(part.queue, part.partition, part.first, part.last):
                yield batch
                begun = True
        except DataLossError as error:
            if self._options.fail_on_data_loss or begun or isinstance(error, LogEndedError):
                raise
            logger.warning("%s; going on, because failOnDataLoss is false", error)
            beginning = binding.beginning_offsets(part.queue).get(part.partition, part.last)
            first = max(part.first, beginning) if binding.counts_messages else beginning
            yield from binding.read(part.queue, part.partition, first, part.last)

    def _still_there(self, wanted: OffsetRange, beginning: int | None) -> OffsetRange:
        """Return what is left of a range if retention was faster, or the log was created again."""
        first, last = wanted.first, wanted.last
        if beginning is None:
            self._report_data_loss(wanted.queue, wanted.partition, "is gone")
            return replace(wanted, first=last)
        if first < beginning:
            self._report_data_loss(wanted.queue, wanted.partition, f"begins at {beginning}, after {first}")
        return replace(wanted, first=min(last, beginning if first > last else max(first, beginning)))

    def _report_data_loss(self, queue: str, number: int, what: str) -> None:
        message = (
            f"queue '{queue}': partition {number} {what}: retention was faster than the reader, or the log "
            "was deleted and created again"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message}. Set failOnDataLoss to false to continue with what is left")
        logger.warning("%s; going on, because failOnDataLoss is false", message)


class _Tally:
    """Counts what waits in logs whose offsets do not count messages, and reads each of them once for that.

    Attributes:
        count: messages from `start` on, or the minimum; endless where a partition has come to its end, as
            others wait for it.
    """

    def __init__(self, log: _Log, start: PartitionOffsets, minimum: int) -> None:
        self.count = 0.0
        self._log = log
        self._minimum = minimum
        self._start = self._end = start

    def counts_from(self, start: PartitionOffsets) -> bool:
        return start == self._start

    def advance(self, binding: LogBinding, most: int) -> PartitionOffsets:
        """Count what has come since; return where a batch ends that has all of it, or `most` messages."""
        if self.count < self._minimum:
            end = self._log.ends(binding, self._end, most - int(self.count))
            if self._has_closed(end, binding.closed_offset):
                self.count = math.inf
            else:
                self.count += self._log.count(binding, self._end, end, self._minimum - self.count)
            self._end = end
        return self._end

    def _has_closed(self, end: PartitionOffsets, closed: int | None) -> bool:
        return any(
            offset == closed != self._start.partitions(queue).get(number)
            for queue, partitions in end.queues.items()
            for number, offset in partitions.items()
        )


def _check(options: Options) -> None:
    meaningless = next((name for name in _MEANINGLESS if name in options.given), None)
    if meaningless:
        raise OptionError(
            f"option '{meaningless}' has no meaning for broker '{options.broker}', whose batches are planned "
            "by offsets: use maxMessagesPerTrigger"
        )


def _split(whole: OffsetRange, total: int, pieces: int) -> Iterator[OffsetRange]:
    """Cut a range into its share of `pieces`, of which all ranges of `total` messages get theirs.

    An empty range gives none.
    """
    size = whole.last - whole.first
    if size <= 0:
        return
    share = max(1, min(round(pieces * size / total), size // WORTH_A_TASK))
    edges = [whole.first + size * piece // share for piece in range(share + 1)]
    for first, last in pairwise(edges):
        yield OffsetRange(whole.queue, whole.partition, first, last)


def _to_spark(offsets: PartitionOffsets) -> dict[str, Any]:
    return {"version": VERSION, "offsets": offsets.to_json()}


def _from_spark(offset: Mapping[str, Any]) -> PartitionOffsets:
    return PartitionOffsets.from_json(offset["offsets"])
