"""The worker on a log: retries wait in tiers, which its own query reads when they are due."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.testing import eventually
from babelqueue_spark.worker import Message, Policy, Reject, Worker
from tests.bindings.kafka_peers import headers_of, records
from tests.servers.kafka import KafkaServer
from tests.streams import WAIT, publish, run, stream
from tests.worker.queues import order, work_off

pytestmark = pytest.mark.spark

TIERS = {"kafka.retry_tiers_ms": "500,1000"}


def handler(folder: Path) -> Callable[[Message], None]:
    """Fails message 1 once, message 2 for ever, and refuses message 3; writes down what it is given."""

    def handle(message: Message) -> None:
        number = message.data["n"]
        (folder / f"{number}-{message.attempts}").touch()
        if number == 2 or (number, message.attempts) == (1, 0):
            raise RuntimeError("not today")
        if number == 3:
            raise Reject("refused")

    return handle


def test_retries_go_through_the_tiers_and_end_as_dead_letters(
    spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    publish(kafka_server.url, queue, [order(queue, n=number) for number in range(4)])
    handled = tmp_path / "handled"
    handled.mkdir()
    worker = Worker({"url": kafka_server.url, **TIERS}, state=str(tmp_path / "ledger"))
    worker.handler("urn:babel:orders:created")(handler(handled))
    queues = f"{queue},{queue}.retry.1,{queue}.retry.2"
    query = run(
        stream(spark, kafka_server.url, queues, tmp_path, **TIERS),
        tmp_path,
        worker,
        processingTime="0 seconds",
    )
    dead = eventually(lambda: query.exception() or records_of(kafka_server, f"{queue}.dlq", 2), WAIT)
    query.stop()
    names = sorted(path.name for path in handled.iterdir())
    assert names == ["0-0", "1-0", "1-1", "2-0", "2-1", "2-2", "3-0"]
    letters = {json.loads(letter.value())["data"]["n"]: letter for letter in dead}
    blocks = {number: json.loads(letter.value())["dead_letter"] for number, letter in letters.items()}
    assert {number: (block["original_queue"], block["attempts"]) for number, block in blocks.items()} == {
        2: (queue, 3),
        3: (queue, 1),
    }
    assert not {"bq-delay", "bq-original-topic"} & headers_of(letters[2]).keys()


def test_without_tiers_no_handler_runs_whose_retries_could_not_be(
    spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    publish(kafka_server.url, queue, [order(queue, n=0)])
    worker = Worker({"url": kafka_server.url}, state=str(tmp_path / "ledger"))
    worker.handler("*")(handler(tmp_path))
    with pytest.raises(StreamingQueryException, match=r"set kafka\.retry_tiers_ms"):
        work_off(spark, worker, kafka_server.url, queue, tmp_path)
    assert not (tmp_path / "0-0").exists()
    never_again = Worker(
        {"url": kafka_server.url}, state=str(tmp_path / "ledger"), policy=Policy(max_attempts=1)
    )
    never_again.handler("*")(handler(tmp_path))
    work_off(spark, never_again, kafka_server.url, queue, tmp_path)
    assert (tmp_path / "0-0").exists()


def test_a_reply_creates_no_topic(spark: Any, kafka_server: KafkaServer, queue: str, tmp_path: Path) -> None:
    replies = f"{queue}-replies"
    asked = [
        {"body": order(queue, n=0), "headers": [("reply-to", to)]} for to in (f"{queue}-nobodys", replies)
    ]
    with read_options({"url": kafka_server.url, "queue": queue}).binding() as binding:
        binding.publish(queue, pa.RecordBatch.from_pylist(asked, OUTGOING))
        publish(kafka_server.url, replies, [order(replies, n=0)])
        worker = Worker({"url": kafka_server.url, **TIERS}, state=str(tmp_path / "ledger"))
        worker.responder("*")(lambda message: {"n": 1})
        work_off(spark, worker, kafka_server.url, queue, tmp_path, **TIERS)
        assert worker.counts.acked == 2
        assert binding.missing(f"{queue}-nobodys")
        assert sum(batch.num_rows for batch in binding.browse(replies)) == 2


def records_of(server: KafkaServer, topic: str, count: int) -> list[Any] | None:
    with read_options({"url": server.url, "queue": topic}).binding() as binding:
        if sum(batch.num_rows for batch in binding.browse(topic)) < count:
            return None
    return records(server, topic, count)
