"""What a query tells in a warning: batches that a sink skips, and queues whose names may be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.source.stream import QueueStreamReader
from tests.brokers import SERVERS
from tests.servers import Server
from tests.streams import WAIT, backlog, envelope, publish, stream


@pytest.mark.spark
def test_a_new_checkpoint_with_the_old_output_of_files(spark: Any, tmp_path: Path) -> None:
    """Spark's file sink skips the numbers of batches that its output has."""
    url, output = f"sqlite:///{tmp_path}/queue.db", str(tmp_path / "lake")

    def read_into(checkpoint: str) -> None:
        query = (
            stream(spark, url, "orders", tmp_path)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start(output)
        )
        assert query.awaitTermination(WAIT)

    publish(url, "orders", map(envelope, range(3)))
    read_into("first")
    publish(url, "orders", map(envelope, range(3, 5)))
    read_into("second")
    assert (spark.read.parquet(output).count(), backlog(url, "orders")) == (3, 2)
    read_into("second")
    assert (spark.read.parquet(output).count(), backlog(url, "orders")) == (5, 0)


def test_a_batch_that_no_task_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", map(envelope, range(3)))
    given = {"url": url, "queue": "orders", "journalLocation": str(tmp_path / "journal")}
    reader = QueueStreamReader(read_options(given), SCHEMA)
    start = reader.initialOffset()
    skipped = reader.latestOffset(start)
    reader.partitions(start, skipped)
    following = reader.latestOffset(skipped)
    assert "batch 1 of orders was not read, and its messages wait" in caplog.text
    caplog.clear()
    for partition in reader.partitions(skipped, following):
        assert sum(batch.num_rows for batch in reader.read(partition)) == 3
    reader.commit(following)
    assert caplog.text == ""


def test_a_queue_that_may_be_misspelt_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    for queue in ("orders", "ordres.dlq", "mails"):
        publish(url, queue, [envelope(1)])
    given = {"url": url, "queue": "ordres,mails", "journalLocation": str(tmp_path / "journal")}
    reader = QueueStreamReader(read_options(given), SCHEMA)
    for _ in range(2):
        reader.latestOffset(reader.initialOffset())
    assert [each.getMessage() for each in caplog.records] == ["queue 'ordres' is empty: did you mean orders?"]


@pytest.mark.server
@pytest.mark.parametrize("broker", ["redis", "sqs"])
def test_servers_know_what_a_name_was_meant_to_be(
    broker: str, request: pytest.FixtureRequest, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = request.getfixturevalue(SERVERS[broker]).url
    publish(url, queue, [envelope(1)])
    given = {"url": url, "queue": queue[:-1], "journalLocation": str(tmp_path / "journal")}
    QueueStreamReader(read_options(given), SCHEMA).latestOffset()
    assert f"queue '{queue[:-1]}' is empty: did you mean {queue}" in caplog.text


@pytest.mark.server
def test_a_queue_that_does_not_exist_is_told(
    rabbitmq_server: Server, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"url": rabbitmq_server.url, "queue": queue, "journalLocation": str(tmp_path / "journal")}
    QueueStreamReader(read_options(given), SCHEMA).latestOffset()
    assert f"the queue '{queue}' is not there: it is created, and the query waits" in caplog.text
