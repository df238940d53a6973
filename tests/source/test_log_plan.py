"""What a log's reader answers Spark, in the orders in which Spark of 4.1 and of 4.2 asks; the log is a dictionary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import BINDINGS, Capabilities, DeadLetterStyle, LogBinding
from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.registry import Registration
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.source.log import LogReader, LogStreamReader
from babelqueue_spark.errors import DataLossError, LogEndedError
from babelqueue_spark.testing import eventually

Spans = dict[str, dict[int, tuple[int, int]]]


class Dictionary(LogBinding):
    """Queue → partition → first offset that is kept, and the one behind the last."""

    name = "dictionary"
    title = "Dictionary"
    capabilities = Capabilities(
        publish_batch=1, publish_once=False, max_delay=0, browse="exact", ordered=True
    )
    spans: ClassVar[Spans] = {}
    looks: ClassVar[list[str]] = []

    def beginning_offsets(self, queue: str) -> dict[int, int]:
        return {number: first for number, (first, _) in self.spans.get(queue, {}).items()}

    def end_offsets(self, queue: str) -> dict[int, int]:
        self.looks.append(queue)
        return {number: last for number, (_, last) in self.spans.get(queue, {}).items()}

    def read(self, queue: str, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        beginning, end = self.spans[queue][partition]
        if first < beginning:
            raise DataLossError("gone")
        kept = range(first, min(last, end))
        yield deliveries(len(kept), body=[b"%d" % offset for offset in kept])
        if last > end:
            raise LogEndedError("ends")

    def commit_offsets(self, queue: str, offsets: Mapping[int, int]) -> None:
        del queue, offsets

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass

    @classmethod
    def dead_letter_name(cls, queue: str, style: DeadLetterStyle) -> str:
        return f"{queue}.{style}"


class Limit:
    """Spark's read limit, as a reader sees it: by the name of its class."""


class ReadAllAvailable(Limit):
    pass


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """The dictionary; `orders` has a partition with 100 messages."""
    entry = Registration(f"{__name__}:Dictionary", "none", ("dictionary",), "none")
    monkeypatch.setitem(BINDINGS, "dictionary", entry)
    monkeypatch.setattr(Dictionary, "spans", {"orders": {0: (0, 100)}})
    monkeypatch.setattr(Dictionary, "looks", [])
    return Dictionary.spans


def reader(queue: str = "orders", **options: Any) -> LogStreamReader:
    given = {name: str(value) for name, value in options.items()}
    return LogStreamReader(read_options({"url": "dictionary://", "queue": queue, **given}), SCHEMA)


def ranges(found: Any) -> list[tuple[str, int, int, int]]:
    return [(each.queue, each.partition, each.first, each.last) for each in found]


def grow(log: Spans, last: int, queue: str = "orders", number: int = 0) -> None:
    log[queue][number] = (log[queue][number][0], last)


class TestTheFirstBatch:
    """Spark asks for the initial offset twice: before it plans, and when it has written the plan down."""

    @pytest.mark.parametrize("beginning", ["latest", '{"orders": {"0": -1}}'])
    def test_nothing_is_skipped_or_lost_when_it_begins_at_the_end(self, log: Spans, beginning: str) -> None:
        spark = reader(startingOffsets=beginning)
        end = spark.latestOffset(spark.initialOffset(), Limit())
        grow(log, 103)
        restarted = reader(startingOffsets=beginning)
        assert ranges(restarted.partitions(restarted.initialOffset(), end)) == []
        later = restarted.latestOffset(end, Limit())
        assert ranges(restarted.partitions(end, later)) == [("orders", 0, 100, 103)]

    def test_a_replay_reads_the_same(self, log: Spans) -> None:
        spark = reader(startingOffsets="latest")
        start = spark.initialOffset()
        grow(log, 110)
        end = spark.latestOffset(start, Limit())
        grow(log, 120)
        restarted = reader(startingOffsets="latest")
        assert ranges(restarted.partitions(restarted.initialOffset(), end)) == [("orders", 0, 100, 110)]

    def test_spark_4_1_asks_for_the_end_first(self, log: Spans) -> None:
        spark = reader(startingOffsets='{"orders": {"0": 90}}')
        end = spark.latestOffset()
        assert ranges(spark.partitions(spark.initialOffset(), end)) == [("orders", 0, 90, 100)]

    def test_spark_4_1_goes_on_after_a_restart(self, log: Spans) -> None:
        end = {"version": 1, "offsets": {"orders": {"0": 60}}}
        spark = reader(maxMessagesPerTrigger=10)
        assert ranges(spark.partitions(end, end)) == []
        grow(log, 65)
        assert ranges(spark.partitions(end, spark.latestOffset())) == [("orders", 0, 60, 65)]


class TestLimits:
    def test_each_partition_gives_its_share(self, log: Spans) -> None:
        log["orders"][1] = (0, 300)
        spark = reader(maxMessagesPerTrigger=40)
        start = spark.initialOffset()
        assert spark.latestOffset(start, Limit())["offsets"] == {"orders": {"0": 10, "1": 30}}
        assert spark.latestOffset(start, ReadAllAvailable())["offsets"] == {"orders": {"0": 100, "1": 300}}

    def test_available_now_stops_at_what_was_there(self, log: Spans) -> None:
        spark = reader()
        spark.prepareForTriggerAvailableNow()
        grow(log, 200)
        assert spark.latestOffset(spark.initialOffset(), Limit())["offsets"] == {"orders": {"0": 100}}

    def test_an_idle_log_is_not_looked_at_each_time(self, log: Spans) -> None:
        spark = reader(startingOffsets="latest")
        start = spark.initialOffset()
        Dictionary.looks.clear()
        for _ in range(20):
            assert spark.latestOffset(start, Limit())["offsets"] == {"orders": {"0": 100}}
        assert len(Dictionary.looks) == 1

    def test_the_lag_of_an_idle_query_is_none(self, log: Spans) -> None:
        spark = reader()
        spark.latestOffset({"version": 1, "offsets": {"orders": {"0": 100}}}, Limit())
        assert spark.reportLatestOffset()["lag"] == {"orders": 0}


class TestTheMinimum:
    """The first poll admits what there is; here it finds nothing."""

    def test_a_batch_waits_for_enough_messages_of_all_logs(self, log: Spans) -> None:
        log["mails"] = {0: (0, 0)}
        spark = reader("orders,mails", startingOffsets="latest", minMessagesPerTrigger=10)
        start = spark.latestOffset(spark.initialOffset(), Limit())
        grow(log, 106)
        assert eventually(lambda: self.lag(spark, start) == 6)
        grow(log, 4, "mails")
        end = eventually(lambda: end if (end := spark.latestOffset(start, Limit())) != start else None)
        assert ranges(spark.partitions(start, end)) == [("orders", 0, 100, 106), ("mails", 0, 0, 4)]
        assert "held" not in spark.reportLatestOffset()

    @staticmethod
    def lag(spark: LogStreamReader, start: Any) -> int:
        assert spark.latestOffset(start, Limit()) == start
        latest = spark.reportLatestOffset()
        return int(latest["total"]) if latest.get("held", {}).get("minimum") == 10 else 0

    def test_a_batch_waits_no_longer_than_the_delay(self, log: Spans) -> None:
        spark = reader(startingOffsets="latest", minMessagesPerTrigger=10, maxTriggerDelay="300ms")
        start = spark.latestOffset(spark.initialOffset(), Limit())
        grow(log, 103)
        end = eventually(lambda: end if (end := spark.latestOffset(start, Limit())) != start else None)
        assert end["offsets"] == {"orders": {"0": 103}}

    def test_available_now_and_once_leave_nothing_for_it(self, log: Spans) -> None:
        limits = {"minMessagesPerTrigger": 60, "maxMessagesPerTrigger": 60}
        spark = reader(**limits)
        spark.prepareForTriggerAvailableNow()
        first = spark.latestOffset(spark.initialOffset(), Limit())
        last = spark.latestOffset(first, Limit())
        assert [each["offsets"]["orders"]["0"] for each in (first, last)] == [60, 100]
        spark = reader(**limits)
        spark.latestOffset(last, Limit())
        grow(log, 101)
        assert eventually(
            lambda: spark.latestOffset(last, ReadAllAvailable())["offsets"] == {"orders": {"0": 101}}
        )

    def test_spark_4_1_waits_too(self, log: Spans) -> None:
        spark = reader(minMessagesPerTrigger=10)
        end = spark.latestOffset()
        spark.partitions(spark.initialOffset(), end)
        grow(log, 104)
        assert spark.latestOffset() == end
        grow(log, 110)
        assert eventually(lambda: spark.latestOffset()["offsets"] == {"orders": {"0": 110}})


class TestWhatChanges:
    START: ClassVar[dict[str, Any]] = {"version": 1, "offsets": {"orders": {"0": 100}, "old": {"0": 5}}}

    def test_new_partitions_and_queues_begin_at_their_beginning(self, log: Spans) -> None:
        log["orders"][1] = (7, 9)
        log["mails"] = {0: (3, 4)}
        spark = reader("orders,mails")
        end = spark.latestOffset(self.START, Limit())
        assert ranges(spark.partitions(self.START, end)) == [("orders", 1, 7, 9), ("mails", 0, 3, 4)]

    def test_a_queue_that_is_not_read_any_more_is_not_asked_for(self, log: Spans) -> None:
        grow(log, 101)
        spark = reader()
        end = spark.latestOffset(self.START, Limit())
        assert end["offsets"] == {"orders": {"0": 101}}
        assert ranges(spark.partitions(self.START, end)) == [("orders", 0, 100, 101)]

    @pytest.mark.parametrize("span", [(0, 50), (0, 0)])
    def test_a_log_that_was_made_anew_is_data_loss(self, log: Spans, span: tuple[int, int]) -> None:
        log["orders"][0] = span
        with pytest.raises(DataLossError, match=r"ends at \d+, before 100 which was read"):
            reader().latestOffset(self.START, Limit())
        spark = reader(failOnDataLoss=False)
        end = spark.latestOffset(self.START, Limit())
        assert ranges(spark.partitions(self.START, end)) == ([("orders", 0, *span)] if span[1] else [])

    def test_a_log_that_is_gone_is_data_loss(self, log: Spans) -> None:
        del log["orders"]
        with pytest.raises(DataLossError, match="ends at 0, before 100"):
            reader().latestOffset(self.START, Limit())

    def test_a_log_that_is_unknown_for_a_while_is_not_read_again(self, log: Spans) -> None:
        spark = reader(failOnDataLoss=False)
        known = log.pop("orders")
        end = spark.latestOffset(self.START, Limit())
        assert ranges(spark.partitions(self.START, end)) == []
        log["orders"] = known
        grow(log, 120)
        later = reader(failOnDataLoss=False)
        assert ranges(later.partitions(end, later.latestOffset(end, Limit()))) == [("orders", 0, 100, 120)]

    def test_an_end_that_is_gone_is_data_loss(self, log: Spans) -> None:
        spark = reader()
        planned = spark.partitions(self.START, {"version": 1, "offsets": {"orders": {"0": 120}}})
        grow(log, 110)
        with pytest.raises(LogEndedError):
            list(reader().read(planned[0]))
        [rows] = reader(failOnDataLoss=False).read(planned[0])
        assert rows.num_rows == 10

    def test_what_retention_took_is_data_loss(self, log: Spans) -> None:
        log["orders"][0] = (150, 200)
        spark = reader()
        end = spark.latestOffset(self.START, Limit())
        with pytest.raises(DataLossError, match="begins at 150, after 100"):
            spark.partitions(self.START, end)
        lenient = reader(failOnDataLoss=False)
        assert ranges(lenient.partitions(self.START, end)) == [("orders", 0, 150, 200)]

    def test_an_end_that_goes_back_for_a_while_is_none(
        self, log: Spans, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As that of a tier, when a clock does."""
        monkeypatch.setattr(Dictionary, "high_watermarks", lambda *_: {0: 100})
        grow(log, 90)
        assert reader().latestOffset(self.START, Limit())["offsets"] == {"orders": {"0": 100}}


def test_a_batch_ends_at_the_end_where_nothing_is_said(log: Spans) -> None:
    log["orders"][1] = (0, 40)
    options = {"url": "dictionary://", "queue": "orders", "endingOffsets": '{"orders": {"0": 10}}'}
    found = LogReader(read_options(options), SCHEMA).partitions()
    assert ranges(found) == [("orders", 0, 0, 10), ("orders", 1, 0, 40)]
