"""Readers of a log, which keeps what was read: Spark's offsets are the log's own, and there is no journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import LogBinding
from babelqueue_spark.errors import BrokerError, DataLossError, LogEndedError, OptionError
from babelqueue_spark.options import Offsets, Options
from babelqueue_spark.rows.reading import to_rows
from babelqueue_spark.source.pace import Pace
from babelqueue_spark.source.plan import WORTH_A_TASK
from babelqueue_spark.source.spark_versions import SupportsTriggerAvailableNow, is_unlimited, max_rows

logger = logging.getLogger(__name__)

VERSION = 1
_MEANINGLESS = ("maxBytesPerTrigger", "maxFetchTime")
_BEGINNING, _END = -2, -1

Places = dict[str, dict[int, int]]
"""Queue → partition → offset of the first message that was not read."""


@dataclass
class Range(InputPartition):
    """One task: messages of a partition of a log, from offset `first` up to `last`, which is not read."""

    queue: str
    partition: int
    first: int
    last: int


class LogReader(DataSourceReader):
    """Reads ranges of logs once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        _check(options)
        if options.starting_offsets == "latest" or options.ending_offsets == "earliest":
            raise OptionError(
                "a batch reads nothing before 'earliest' and after 'latest': change the offsets"
            )
        self._log = _Log(options, schema)
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges between the starting and the ending offsets."""
        with self._log.binding() as binding:
            begin = self._log.places(binding, self._options.starting_offsets or "earliest", "earliest")
            end = self._log.places(binding, self._options.ending_offsets or "latest", "latest")
            return self._log.ranges(binding, begin, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range."""
        return self._log.read(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as a stream; what a batch reads stands in Spark's offsets, so a replay reads the same.

    Where a query without a checkpoint begins, Spark asks again when it replays the first batch. So the end of
    that batch says where it began (`from`), and the answer is marked (`initial`) to be passed over.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        _check(options)
        if options.ending_offsets is not None:
            raise OptionError("option 'endingOffsets' has no meaning for a stream: remove it")
        self._log = _Log(options, schema)
        self._options = options
        self._driver: LogBinding | None = None
        self._pace = Pace()
        self._initial: Places | None = None
        self._known: Places | None = None
        self._last: dict[str, Any] | None = None
        self._ends: Places = {}
        self._target: Places | None = None

    @property
    def _binding(self) -> LogBinding:
        if self._driver is None:
            self._driver = self._log.binding()
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        return {**_offset(self._beginning()), "initial": True}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """What may be read now, at most `maxMessagesPerTrigger` messages after `start`.

        Spark 4.2 passes `start` and `limit`, 4.1 neither: there the first batch has no bound.
        """
        if self._last is not None and self._target is None and self._pace.resting():
            return self._last
        self._ends = self._log.places(self._binding, "latest")
        known = self._known if start is None else _places(start)
        if known is None:
            end = self._ends
        else:
            known = self._log.kept(self._binding, known, self._ends)
            end = _at_most(self._ends, self._target) if self._target is not None else self._ends
            if not is_unlimited(limit):
                end = _limited(known, end, self._options.max_messages)
            self._pace.polled(idle=not _size(known, end))
            end = _at_least(end, known)
        begun = {} if start is not None and not start.get("initial") else {"from": _texts(self._beginning())}
        self._last = {**_offset(end), **begun}
        return self._last

    def getDefaultReadLimit(self) -> Any:
        """At most `maxMessagesPerTrigger` a batch."""
        return max_rows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: this query stops behind it."""
        self._target = self._log.places(self._binding, "latest")

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the logs when they were last looked at, and how far the stream is behind them."""
        reached = _places(self._last) if self._last is not None else {}
        lag = {queue: _size(reached, {queue: parts}) for queue, parts in self._ends.items()}
        return {**_offset(self._ends), "lag": lag, "total": sum(lag.values())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets."""
        begin = _parsed(end.get("from", end["offsets"])) if start.get("initial") else _places(start)
        self._known = _places(end)
        return self._log.ranges(self._binding, begin, self._known)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has finished everything up to `end`; monitors are told."""
        for queue, offsets in _places(end).items():
            try:
                self._binding.note(queue, offsets)
            except BrokerError as error:
                logger.warning("monitors are not told how far the stream is: %s", error)

    def stop(self) -> None:
        """Close the driver's connection."""
        if self._driver is not None:
            self._driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range."""
        return self._log.read(partition)

    def _beginning(self) -> Places:
        if self._initial is None:
            wanted = self._options.starting_offsets or "earliest"
            self._initial = self._log.places(self._binding, wanted, "earliest")
        return self._initial

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}


class _Log:
    """What batch and stream share: where logs begin and end, and how ranges of them are read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def binding(self) -> LogBinding:
        binding = self._options.binding()
        assert isinstance(binding, LogBinding)
        return binding

    def places(
        self, binding: LogBinding, wanted: Offsets, others: Literal["earliest", "latest"] = "latest"
    ) -> Places:
        """`earliest`, `latest`, or offsets by name, and `others` for partitions that have none."""
        if wanted == "earliest":
            return {queue: binding.beginnings(queue) for queue in self._options.queue}
        if wanted == "latest":
            return {queue: binding.ends(queue) for queue in self._options.queue}
        assert not isinstance(wanted, str)
        unknown = sorted(wanted.keys() - set(self._options.queue))
        if unknown:
            raise OptionError(f"offsets are given for '{unknown[0]}', which is not in option 'queue'")
        special = {_BEGINNING: self.places(binding, "earliest"), _END: self.places(binding, "latest")}
        found = self.places(binding, others)
        return {
            queue: {
                **parts,
                **{
                    number: special[at][queue].get(number, 0) if at in special else at
                    for number, at in wanted.get(queue, {}).items()
                },
            }
            for queue, parts in found.items()
        }

    def kept(self, binding: LogBinding, known: Places, ends: Places) -> Places:
        """`known` as far as it is asked for, with partitions that came since, and anew what was made anew."""
        known = {queue: dict(known.get(queue, {})) for queue in self._options.queue}
        for queue, parts in known.items():
            if all(ends[queue].get(number, -1) >= at for number, at in parts.items()):
                continue
            newest = binding.newest(queue)
            for number, at in list(parts.items()):
                if newest.get(number, 0) < at:
                    self._lost(queue, number, f"ends at {newest.get(number, 0)}, before {at} which was read")
                    parts[number] = 0 if number in newest else at
        return self._completed(binding, known, ends)

    def _completed(self, binding: LogBinding, known: Places, ends: Places) -> Places:
        """`known` with the partitions that came since, from their beginnings."""
        news = [queue for queue, parts in ends.items() if parts.keys() - known.get(queue, {}).keys()]
        return {**known, **{queue: {**binding.beginnings(queue), **known.get(queue, {})} for queue in news}}

    def ranges(self, binding: LogBinding, begin: Places, end: Places) -> list[Range]:
        """What lies between two places, in as many tasks as are worth it."""
        begin = self._completed(binding, begin, end)
        found = [
            Range(queue, number, first, last)
            for queue, parts in end.items()
            for number, last in parts.items()
            if (first := begin[queue].get(number, 0)) != last
        ]
        beginnings = {queue: binding.beginnings(queue) for queue in {each.queue for each in found}}
        found = [self._still_there(each, beginnings[each.queue].get(each.partition)) for each in found]
        pieces = self._options.num_partitions if "numPartitions" in self._options.given else 0
        size = sum(each.last - each.first for each in found)
        return [piece for each in found for piece in _split(each, size, pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        with self.binding() as binding:
            home = binding.home(partition.queue)
            for batch in self._batches(binding, partition):
                yield to_rows(batch, home, binding, self._schema, self._options.allow_empty_list_data)

    def _batches(self, binding: LogBinding, part: Range) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._what_is_left(binding, part)
        except LogEndedError as error:
            if self._options.fail_on_data_loss:
                raise
            logger.warning("%s; going on, because failOnDataLoss is false", error)

    def _what_is_left(self, binding: LogBinding, part: Range) -> Iterator[pa.RecordBatch]:
        begun = False
        try:
            for batch in binding.read(part.queue, part.partition, part.first, part.last):
                yield batch
                begun = True
        except DataLossError as error:
            if self._options.fail_on_data_loss or begun or isinstance(error, LogEndedError):
                raise
            logger.warning("%s; going on, because failOnDataLoss is false", error)
            beginning = binding.beginnings(part.queue).get(part.partition, part.last)
            yield from binding.read(part.queue, part.partition, max(part.first, beginning), part.last)

    def _still_there(self, wanted: Range, beginning: int | None) -> Range:
        """The range, or what is left of it where retention was faster, or the log was made anew."""
        first, last = wanted.first, wanted.last
        if beginning is None:
            self._lost(wanted.queue, wanted.partition, "is gone")
            return replace(wanted, first=last)
        if first < beginning:
            self._lost(wanted.queue, wanted.partition, f"begins at {beginning}, after {first}")
        return replace(wanted, first=min(last, beginning if first > last else max(first, beginning)))

    def _lost(self, queue: str, number: int, what: str) -> None:
        message = (
            f"queue '{queue}': partition {number} {what}: retention was faster than the reader, or the log "
            "was made anew"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message}. Set failOnDataLoss to false to go on with what is left")
        logger.warning("%s; going on, because failOnDataLoss is false", message)


def _check(options: Options) -> None:
    meaningless = next((name for name in _MEANINGLESS if name in options.given), None)
    if meaningless:
        raise OptionError(
            f"option '{meaningless}' has no meaning for broker '{options.broker}', whose batches are planned "
            "by offsets: use maxMessagesPerTrigger"
        )


def _split(whole: Range, total: int, pieces: int) -> Iterator[Range]:
    """A range in its share of the pieces that all ranges are cut into; nothing of an empty one."""
    size = whole.last - whole.first
    if size <= 0:
        return
    share = max(1, min(round(pieces * size / total), size // WORTH_A_TASK))
    edges = [whole.first + size * piece // share for piece in range(share + 1)]
    for first, last in pairwise(edges):
        yield Range(whole.queue, whole.partition, first, last)


def _limited(begin: Places, end: Places, messages: int) -> Places:
    """`end`, nearer where more than so many messages lie before it: each partition gives its share."""
    total = _size(begin, end)
    if total <= messages:
        return end
    return {
        queue: {
            number: first + min(last - first, max(1, messages * (last - first) // total))
            if last > (first := begin.get(queue, {}).get(number, 0))
            else last
            for number, last in parts.items()
        }
        for queue, parts in end.items()
    }


def _size(begin: Places, end: Places) -> int:
    """Messages between two places, and gaps."""
    return sum(
        max(0, last - begin.get(queue, {}).get(number, 0))
        for queue, parts in end.items()
        for number, last in parts.items()
    )


def _at_most(places: Places, bound: Places) -> Places:
    """The nearer of two places; partitions that the bound has not are left out."""
    return {
        queue: {
            number: min(at, bound[queue][number]) for number, at in parts.items() if number in bound[queue]
        }
        for queue, parts in places.items()
        if queue in bound
    }


def _at_least(places: Places, known: Places) -> Places:
    """The further of two places, for the partitions that are known."""
    return {
        queue: {number: max(at, places.get(queue, {}).get(number, 0)) for number, at in parts.items()}
        for queue, parts in known.items()
    }


def _offset(places: Places) -> dict[str, Any]:
    return {"version": VERSION, "offsets": _texts(places)}


def _texts(places: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """As JSON has it, where keys are text."""
    return {queue: {str(number): at for number, at in parts.items()} for queue, parts in places.items()}


def _parsed(texts: Mapping[str, Mapping[str, int]]) -> Places:
    return {queue: {int(number): at for number, at in parts.items()} for queue, parts in texts.items()}


def _places(offset: Mapping[str, Any]) -> Places:
    return _parsed(offset["offsets"])
