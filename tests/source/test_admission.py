"""When a batch begins: `minMessagesPerTrigger` and `maxTriggerDelay`, by the reader's protocol and in a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.bindings import Binding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.source.log import LogStreamReader
from babelqueue_spark.connector.source.stream import QueueStreamReader
from babelqueue_spark.testing import eventually, outgoing
from babelqueue_spark.testing.steps import take
from tests.bindings.test_kinesis import split
from tests.brokers import SERVERS, url_of
from tests.servers.aws import AwsServer
from tests.source.test_drain import ReadAllAvailable, ReadMaxRows, batches_of, reader
from tests.streams import WAIT, envelope, publish, run, stream

QUEUES = ["sqlite", *(broker for broker in SERVERS if broker not in ("kafka", "kinesis"))]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def fill(url: str, messages: int, queue: str = "q") -> None:
    publish(url, queue, (envelope(number) for number in range(messages)))


def begun(url: str, folder: Path, **options: Any) -> tuple[QueueStreamReader, dict[str, Any]]:
    """A reader whose first poll has found nothing, and its offset."""
    started = reader(url, folder, **options)
    start = started.initialOffset()
    assert started.latestOffset(start, ReadMaxRows()) == start
    return started, start


def planned(spark: QueueStreamReader, start: Any) -> int:
    """The messages of the next batch, once there is one."""
    plan = eventually(lambda: end if (end := spark.latestOffset(start, ReadMaxRows())) != start else None)
    return sum(read["messages"] for read in plan["reads"])


def order_ids(rows: Any) -> list[int]:
    return [json.loads(data)["order_id"] for data in rows.column("data").to_pylist()]


def is_held(spark: QueueStreamReader, start: Any, waiting: int) -> bool:
    """Whether a poll that has seen so many messages plans nothing."""

    def seen() -> bool:
        assert spark.latestOffset(start, ReadMaxRows()) == start
        return bool(spark.reportLatestOffset()["total"] == waiting)

    return bool(eventually(seen))


def test_a_batch_waits_for_enough_messages_of_all_queues(url: str, tmp_path: Path) -> None:
    spark, start = begun(url, tmp_path, queue="a,b", minMessagesPerTrigger=10)
    fill(url, 6, "a")
    assert is_held(spark, start, 6)
    fill(url, 4, "b")
    assert planned(spark, start) == 10


def test_a_batch_waits_no_longer_than_the_delay(url: str, tmp_path: Path) -> None:
    spark, start = begun(url, tmp_path, minMessagesPerTrigger=10, maxTriggerDelay="300ms")
    fill(url, 3)
    assert planned(spark, start) == 3


def test_the_first_poll_admits_what_there_is_as_nobody_knows_since_when(url: str, tmp_path: Path) -> None:
    fill(url, 3)
    spark = reader(url, tmp_path, minMessagesPerTrigger=10)
    end = spark.latestOffset(spark.initialOffset(), ReadMaxRows())
    assert [rows.num_rows for part in spark.partitions({**end, "batch": 0}, end) for rows in spark.read(part)]
    fill(url, 4)
    assert is_held(spark, end, 4)
    assert planned(reader(url, tmp_path, minMessagesPerTrigger=10), end) == 4


def test_a_batch_that_was_planned_before_a_restart_is_not_held(url: str, tmp_path: Path) -> None:
    fill(url, 3)
    first = reader(url, tmp_path)
    start = first.initialOffset()
    plan = first.latestOffset(start, ReadMaxRows())
    again = reader(url, tmp_path, minMessagesPerTrigger=10)
    assert again.latestOffset(start, ReadMaxRows()) == plan


def test_available_now_and_once_leave_nothing_for_the_minimum(url: str, tmp_path: Path) -> None:
    limits = {"minMessagesPerTrigger": 10, "maxMessagesPerTrigger": 10}
    fill(url, 25)
    spark = reader(url, tmp_path, **limits)
    spark.prepareForTriggerAvailableNow()
    assert batches_of(spark, ReadMaxRows()) == [10, 10, 5]
    spark, start = begun(url, tmp_path, **limits)
    fill(url, 4)
    assert eventually(lambda: spark.latestOffset(start, ReadAllAvailable()) != start)


def test_the_progress_says_for_what_a_query_waits(url: str, tmp_path: Path) -> None:
    spark, start = begun(url, tmp_path, minMessagesPerTrigger=10, maxTriggerDelay="1 hour")
    assert "held" not in spark.reportLatestOffset()
    fill(url, 4)
    assert is_held(spark, start, 4)
    held = spark.reportLatestOffset()["held"]
    assert (held["minimum"], 0 < held["seconds_left"] <= 3600) == (10, True)
    fill(url, 6)
    assert planned(spark, start) == 10
    assert "held" not in spark.reportLatestOffset()


@pytest.mark.parametrize("broker", QUEUES)
def test_messages_that_wait_are_claimed_by_nobody(
    broker: str, request: Any, queue: str, tmp_path: Path
) -> None:
    url = url_of(broker, request, tmp_path)
    spark, start = begun(url, tmp_path, queue=queue, minMessagesPerTrigger=10)
    fill(url, 3, queue)
    assert is_held(spark, start, 3)
    with read_options({"url": url, "queue": queue}).binding() as other:
        assert isinstance(other, Binding)
        claimed = take(other, queue, 3)
        assert other.acknowledge(queue, claimed).true_count == 3
    spark.stop()


class TestKinesis:
    """Its offsets do not count messages."""

    @pytest.fixture
    def spark(self, aws_server: AwsServer, queue: str) -> LogStreamReader:
        url = aws_server.url.replace("shard_count=1", "shard_count=2")
        fill(url, 1, queue)
        given = {"url": url, "queue": queue, "startingOffsets": "latest", "minMessagesPerTrigger": "10"}
        return LogStreamReader(read_options({**given, "maxMessagesPerTrigger": "10"}), SCHEMA)

    @staticmethod
    def send(server: AwsServer, queue: str, first: int, last: int) -> None:
        """Add messages to one shard of the two."""
        with read_options({"url": server.url, "queue": queue}).binding() as binding:
            bodies = [envelope(number) for number in range(first, last)]
            binding.publish(queue, outgoing(bodies, keys=["one"] * len(bodies)))

    def test_a_batch_waits_for_enough_messages(
        self, spark: LogStreamReader, aws_server: AwsServer, queue: str
    ) -> None:
        start = spark.latestOffset(spark.initialOffset(), ReadMaxRows())
        self.send(aws_server, queue, 0, 6)
        assert eventually(lambda: self.held(spark, start))
        self.send(aws_server, queue, 6, 10)
        end = eventually(lambda: end if (end := spark.latestOffset(start, ReadMaxRows())) != start else None)
        read = [rows for part in spark.partitions(start, end) for rows in spark.read(part)]
        assert sorted(number for rows in read for number in order_ids(rows)) == list(range(10))

    @staticmethod
    def held(spark: LogStreamReader, start: Any) -> bool:
        assert spark.latestOffset(start, ReadMaxRows()) == start
        return spark.reportLatestOffset().get("held", {}).get("minimum") == 10

    def test_the_end_of_a_shard_does_not_wait_as_its_children_do(
        self, spark: LogStreamReader, aws_server: AwsServer, queue: str
    ) -> None:
        start = spark.latestOffset(spark.initialOffset(), ReadMaxRows())
        split(aws_server, queue, at=str(2**126))
        assert eventually(lambda: spark.latestOffset(start, ReadMaxRows()) != start)


@pytest.mark.spark
def test_a_query_waits_and_says_so(spark: Any, url: str, tmp_path: Path, admission_control: bool) -> None:
    fill(url, 3)
    sizes: list[int] = []
    frame = stream(spark, url, "q", tmp_path, minMessagesPerTrigger=10)
    query = run(frame, tmp_path, lambda df, _: sizes.append(df.count()), processingTime="0 seconds")
    eventually(lambda: sizes == [3] or query.exception(), WAIT)
    fill(url, 4)
    if admission_control:
        eventually(lambda: _waiting(query) == 4 or query.exception(), WAIT)
    fill(url, 6)
    eventually(lambda: len(sizes) == 2 or query.exception(), WAIT)
    query.stop()
    assert sizes == [3, 10]


def _waiting(query: Any) -> int:
    latest = json.loads((query.lastProgress or {"sources": [{}]})["sources"][0].get("latestOffset") or "{}")
    return int(latest["total"]) if "held" in latest else 0
