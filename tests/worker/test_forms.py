"""Messages without our envelope through Spark: read typed, handled, retried, dead-lettered, redriven, written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import PythonException

from babelqueue_spark.worker import Message, Outgoing, Policy, Worker, redrive
from tests.brokers import url_of
from tests.streams import publish, run, stream
from tests.worker.queues import taken, work_off

pytestmark = pytest.mark.spark

BROKERS = ["sqlite", "redis", "rabbitmq"]
PLAIN = {"envelope": "none", "jobFrom": "field:event"}


def sent(url: str, queue: str, *bodies: bytes) -> None:
    """What any program may put on the queue; on RabbitMQ by a bare client."""
    if not url.startswith("amqp"):
        publish(url, queue, bodies)
        return
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number, body in enumerate(bodies):
            channel.basic_publish(
                "", queue, body, pika.BasicProperties(type="plain", message_id=f"m{number}")
            )


def handle(message: Message) -> Any:
    if message.job == "refund":
        raise ValueError("no money")
    assert message.job == "paid"
    return Outgoing(job="receipt", data={"of": message.data["order"]}, queue=f"{message.queue}-out")


@pytest.mark.parametrize("broker", BROKERS)
def test_a_worker_handles_plain_json_and_keeps_the_bytes_of_what_fails(
    spark: Any, broker: str, queue: str, tmp_path: Path, request: Any
) -> None:
    url = url_of(broker, request, tmp_path)
    refund, poison = b'{ "event": "refund", "order": 2 }', b"\xffnot json"
    sent(url, queue, b'{"event":"paid","order":1}', refund, poison, b'{"event":"unknown"}')
    worker = Worker(
        {"url": url, "envelope": "none"},
        state=str(tmp_path / "state"),
        policy=Policy(max_attempts=2, unknown_urn="delete"),
    )
    worker.handler("*a*d")(handle)
    worker.handler("refund")(handle)
    work_off(spark, worker, url, queue, tmp_path, **PLAIN)
    assert worker.counts.by[("refund", "retried", "failed")] == 1
    work_off(spark, worker, url, queue, tmp_path, **PLAIN)
    assert worker.counts.by[("refund", "dead_lettered", "failed")] == 1
    assert json.loads(*taken(url, f"{queue}-out", 1)) == {"of": 1}
    letters = spark.read.format("babelqueue").options(url=url, queue=f"{queue}.dlq", **PLAIN).load().collect()
    found = {row.dead_letter.reason: row for row in letters}
    assert (found["failed"].dead_letter.error, found["failed"].attempts) == ("no money", 2)
    assert found["failed"].dead_letter.original_queue == queue
    assert found["invalid_data"].data is None
    moved = redrive(spark, {"url": url, **PLAIN}, f"{queue}.dlq", poison=True)
    assert len(moved.moves) == 2
    assert sorted(taken(url, queue, 2)) == sorted([refund, poison])


def test_a_worker_without_the_option_of_its_read_says_so(spark: Any, queue: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    sent(url, queue, b'{"event":"paid"}')
    worker = Worker({"url": url}, state=str(tmp_path / "state"))
    rows = spark.read.format("babelqueue").options(url=url, queue=queue, **PLAIN).load()
    with pytest.raises(PythonException, match="give it the option 'envelope' that the read has"):
        worker.run(rows)


def test_the_properties_of_rabbitmq_name_a_message(
    spark: Any, rabbitmq_server: Any, queue: str, tmp_path: Path
) -> None:
    url = rabbitmq_server.url
    sent(url, queue, b"[1, 2]")
    frame = stream(
        spark,
        url,
        queue,
        tmp_path,
        schema="job STRING, data ARRAY<INT>, meta STRUCT<id STRING, queue STRING, lang STRING, schema_version INT, created_at TIMESTAMP, extra MAP<STRING, STRING>>",
        envelope="none",
    )
    rows: list[Any] = []
    run(frame, tmp_path, lambda batch, _: rows.extend(batch.collect()))
    assert [(row.job, row.data, row.meta.id) for row in rows] == [("plain", [1, 2], "m0")]


@pytest.mark.parametrize("broker", BROKERS)
def test_a_frame_is_written_byte_for_byte(
    spark: Any, broker: str, queue: str, tmp_path: Path, request: Any
) -> None:
    url = url_of(broker, request, tmp_path)
    rows = spark.createDataFrame(
        [('{ "a": 1 }', None), (None, bytearray(b"\x00\xff" if broker == "redis" else b"x"))],
        "data STRING, body BINARY",
    )
    rows.coalesce(1).write.format("babelqueue").options(url=url, queue=queue, envelope="none").mode(
        "append"
    ).save()
    assert taken(url, queue, 2) == [b'{ "a": 1 }', b"\x00\xff" if broker == "redis" else b"x"]
