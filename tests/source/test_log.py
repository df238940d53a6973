"""Logs as streams: Spark's offsets are the log's, and a batch reads the same each time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from babelqueue_spark.testing import eventually
from tests.bindings.kafka_peers import commit, committed, delete_before, make_topic, send
from tests.servers.kafka import KafkaServer
from tests.streams import WAIT, drain, envelope, numbers, publish, run, stream

pytestmark = pytest.mark.spark

Fill = Callable[..., None]


@pytest.fixture
def topic(kafka_server: KafkaServer, queue: str) -> str:
    make_topic(kafka_server, queue, partitions=3)
    return queue


@pytest.fixture
def fill(kafka_server: KafkaServer, topic: str) -> Fill:
    """Adds envelopes of a range of numbers, to each partition in turns."""

    def fill(first: int, last: int) -> None:
        for partition in range(3):
            send(
                kafka_server,
                topic,
                [envelope(number, topic) for number in range(first + partition, last, 3)],
                partition=partition,
            )

    return fill


def batch(spark: Any, server: KafkaServer, topic: str, **options: Any) -> Any:
    return spark.read.format("babelqueue").options(url=server.url, queue=topic, **options).load()


def test_a_stream_reads_each_message_once_over_restarts(
    spark: Any, kafka_server: KafkaServer, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(0, 3000)
    first = drain(spark, kafka_server.url, topic, tmp_path, maxMessagesPerTrigger=1000)
    assert [len(rows) for rows in first] == [999, 999, 999, 3]
    fill(3000, 3100)
    second = drain(spark, kafka_server.url, topic, tmp_path)
    found = Counter(numbers(row for rows in [*first, *second] for row in rows))
    assert found == Counter(range(3100))


def test_rows_have_all_columns(spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path) -> None:
    body = envelope(7, queue, attempts=5)
    send(kafka_server, queue, [body], headers=[("bq-attempts", "2"), ("x", b"\xff"), ("x", "later")], key="k")
    [[row]] = drain(spark, kafka_server.url, queue, tmp_path)
    assert (row.job, row.attempts, row.error, row.queue) == ("urn:babel:orders:created", 2, None, queue)
    assert (bytes(row.body), row.headers) == (body, {"bq-attempts": "2", "x": "\\xff"})
    assert (row.delivery.id, row.delivery.key, row.delivery["count"]) == ("0:0", "k", None)


def test_tombstones_and_other_records_are_rows_with_a_reason(
    spark: Any, kafka_server: KafkaServer, queue: str
) -> None:
    send(kafka_server, queue, [None, b"not json", envelope(1)], key=b"\xffk")
    rows = batch(spark, kafka_server, queue).collect()
    assert [bytes(row.body) for row in rows[:2]] == [b"", b"not json"]
    assert [row.error is None for row in rows] == [False, False, True]
    assert rows[0].delivery.key == "\\xffk"


def test_a_replayed_batch_has_the_same_messages_though_it_began_at_the_end(
    spark: Any, kafka_server: KafkaServer, topic: str, fill: Fill, tmp_path: Path
) -> None:
    """The query dies in its first batch, and what came meanwhile moves the end."""
    fill(0, 30)
    seen: list[list[int]] = []

    def fails(frame: Any, _: int) -> None:
        rows = frame.collect()
        if rows:
            seen.append(sorted(numbers(rows)))
            raise RuntimeError("the sink is down")

    def start(each: Any) -> Any:
        frame = stream(spark, kafka_server.url, topic, tmp_path, startingOffsets="latest")
        return run(frame, tmp_path, each, processingTime="0 seconds")

    query = start(fails)
    eventually(lambda: query.lastProgress, WAIT)
    fill(30, 60)
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        query.awaitTermination(WAIT)
    fill(60, 90)
    query = start(lambda frame, _: seen.append(sorted(numbers(frame.collect()))))
    eventually(lambda: sum(map(len, seen[1:])) >= 60 or query.exception(), WAIT)
    query.stop()
    assert seen[1] == seen[0]
    assert sorted(number for rows in seen[1:] for number in rows) == list(range(30, 90))


def test_a_batch_reads_between_offsets(spark: Any, kafka_server: KafkaServer, topic: str, fill: Fill) -> None:
    fill(0, 30)
    begin = json.dumps({topic: {"0": 4, "1": -1, "2": -2}})
    end = json.dumps({topic: {"0": 6, "1": -1, "2": 1}})
    rows = batch(spark, kafka_server, topic, startingOffsets=begin, endingOffsets=end).collect()
    assert sorted(row.delivery.id for row in rows) == ["0:4", "0:5", "2:0"]
    assert batch(spark, kafka_server, topic).count() == 30


def test_a_large_partition_is_split_where_more_tasks_are_wanted(
    spark: Any, kafka_server: KafkaServer, queue: str
) -> None:
    send(kafka_server, queue, [envelope(number) for number in range(4000)])
    frame = batch(spark, kafka_server, queue, numPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(numbers(frame.collect())) == list(range(4000))


def test_partitions_that_come_later_are_read_from_their_beginning(
    spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    send(kafka_server, queue, [envelope(0)])
    assert drain(spark, kafka_server.url, queue, tmp_path)
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    admin.create_partitions([NewPartitions(queue, 2)])[queue].result(30)
    eventually(lambda: len(admin.list_topics(queue, timeout=10).topics[queue].partitions) == 2)
    send(kafka_server, queue, [envelope(1)], partition=1)
    [rows] = drain(spark, kafka_server.url, queue, tmp_path)
    assert numbers(rows) == [1]


def test_a_query_may_begin_before_its_topic_is_there(
    spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    assert drain(spark, kafka_server.url, queue, tmp_path) == []
    publish(kafka_server.url, queue, [envelope(1)])
    [rows] = drain(spark, kafka_server.url, queue, tmp_path)
    assert numbers(rows) == [1]


def test_what_retention_took_is_data_loss(
    spark: Any, kafka_server: KafkaServer, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(0, 30)
    drain(spark, kafka_server.url, topic, tmp_path)
    fill(30, 60)
    delete_before(kafka_server, topic, 0, 15)
    with pytest.raises(StreamingQueryException, match="retention was faster than the reader"):
        drain(spark, kafka_server.url, topic, tmp_path)
    [rows] = drain(spark, kafka_server.url, topic, tmp_path, failOnDataLoss="false")
    assert len(rows) == 25


def test_monitors_see_how_far_a_query_is(
    spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    publish(kafka_server.url, queue, [envelope(number) for number in range(10)])
    group = {"kafka.group.id": f"monitored-{queue}"}
    drain(spark, kafka_server.url, queue, tmp_path, maxMessagesPerTrigger=5, **group)
    assert committed(kafka_server, f"monitored-{queue}", queue) >= 5


def test_what_a_monitor_commits_changes_nothing(
    spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    group = {"kafka.group.id": f"monitored-{queue}"}
    publish(kafka_server.url, queue, [envelope(number) for number in range(10)])
    drain(spark, kafka_server.url, queue, tmp_path, **group)
    for offset in (0, 12):
        commit(kafka_server, group["kafka.group.id"], queue, offset)
        publish(kafka_server.url, queue, [envelope(10 + offset)])
        [rows] = drain(spark, kafka_server.url, queue, tmp_path, **group)
        assert numbers(rows) == [10 + offset]


def test_the_progress_tells_the_lag(
    spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    publish(kafka_server.url, queue, [envelope(number) for number in range(10)])
    query = run(
        stream(spark, kafka_server.url, queue, tmp_path, maxMessagesPerTrigger=4), tmp_path, lambda *_: None
    )
    lags = [
        json.loads(progress["sources"][0]["latestOffset"])["lag"][queue] for progress in query.recentProgress
    ]
    assert lags[:2] == [6, 2]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": "first"}, "'earliest', 'latest', or JSON"),
        ({"startingOffsets": '{"elsewhere": {"0": 1}}'}, "not in option 'queue'"),
        ({"startingOffsets": "latest"}, "a batch reads nothing before"),
        ({"maxBytesPerTrigger": "1m"}, "use maxMessagesPerTrigger"),
    ],
)
def test_options_that_cannot_be_used(
    spark: Any, kafka_server: KafkaServer, queue: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        batch(spark, kafka_server, queue, **options).collect()


def test_a_queue_has_no_offsets(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="'startingOffsets' has no meaning for broker 'sql'"):
        frame = spark.read.format("babelqueue").options(url=f"sqlite:///{tmp_path}/q.db", queue="q")
        frame.option("startingOffsets", "earliest").load().collect()
