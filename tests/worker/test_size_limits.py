"""Dead letters near the limit of their queue: the block goes before the message does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.envelope import strip_dead_letter
from babelqueue_spark.testing import eventually
from babelqueue_spark.worker import Message, Policy, Reject, Worker
from tests.bindings.kafka_peers import records
from tests.brokers import SERVERS
from tests.servers import Server
from tests.servers.kafka import KafkaServer
from tests.servers.mariadb import MariaDbServer
from tests.servers.rabbitmq import RabbitServer
from tests.streams import publish
from tests.worker.queues import order, taken, work_off

pytestmark = pytest.mark.spark

LIMITS: dict[str, tuple[int, Mapping[str, str]]] = {
    "sqs": (2_000, {"sqs.max_message_bytes": "2000"}),
    "servicebus": (260_800, {}),
    "kafka": (2_750, {"kafka.message.max.bytes": "4000"}),
    "rabbitmq": (20_000, {}),
    "mariadb": (2_096_500, {}),
    "pulsar": (5_242_880 - 800, {}),
}
"""Broker → bytes of a body that fits, while it would not with a block; options that set the limit.

RabbitMQ tells its limit only by refusing a message; so does Pulsar.
"""


@contextmanager
def limited(server: Server) -> Iterator[None]:
    """A server that takes no more than `LIMITS` says, where that is its own setting."""
    if isinstance(server, RabbitServer):
        set_size = "application:set_env(rabbit, max_message_size, {})."
        server.control("eval", set_size.format(20_000))
        yield
        server.control("eval", set_size.format(134_217_728))
    elif isinstance(server, MariaDbServer):
        _set_packet(server, 2 << 20)
        yield
        _set_packet(server, 16 << 20)
    else:
        yield


def _set_packet(server: MariaDbServer, size: int) -> None:
    with sqlalchemy.create_engine(server.url).connect() as connection:
        connection.exec_driver_sql(f"SET GLOBAL max_allowed_packet = {size}")


def sized(queue: str, size: int) -> bytes:
    """An envelope of so many bytes."""
    return order(queue, note="x" * (size - len(order(queue, note=""))))


@pytest.mark.parametrize("broker", LIMITS)
def test_a_dead_letter_without_room_for_its_block_goes_as_it_came(
    broker: str, spark: Any, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    server = request.getfixturevalue(SERVERS[broker])
    size, limit = LIMITS[broker]
    small, large = order(queue, note="small"), sized(queue, size)
    publish(server.url, queue, [large, small])
    worker = Worker(
        {"url": server.url, **limit}, state=str(tmp_path / "ledger"), policy=Policy(max_attempts=1)
    )

    @worker.handler("*")
    def refuse(_: Message) -> None:
        raise Reject("not ours")

    with limited(server):
        work_off(spark, worker, server.url, queue, tmp_path)
    name = f"{queue}-dlq" if broker == "sqs" else f"{queue}.dlq"
    if isinstance(server, KafkaServer):
        letters = [record.value() for record in records(server, name, 2)]
    else:
        letters = taken(server.url, name, 2)
    [annotated, as_it_came] = sorted(letters, key=len)
    assert as_it_came == large
    assert json.loads(annotated)["dead_letter"]["reason"] == "not ours"
    assert json.loads(annotated)["data"] == json.loads(small)["data"]


def test_a_block_that_does_not_fit_is_cut_to_its_reason_first(
    spark: Any, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    server = request.getfixturevalue(SERVERS["sqs"])
    sent = sized(queue, 1_500)
    publish(server.url, queue, [sent])
    limit = {"sqs.max_message_bytes": "2000"}
    worker = Worker(
        {"url": server.url, **limit}, state=str(tmp_path / "ledger"), policy=Policy(max_attempts=1)
    )

    @worker.handler("*")
    def fail(_: Message) -> None:
        raise ValueError("y" * 1_000)

    work_off(spark, worker, server.url, queue, tmp_path)
    [letter] = taken(server.url, f"{queue}-dlq", 1)
    assert len(letter) <= 2_000
    assert strip_dead_letter(pa.array([letter])).to_pylist() == [sent]
    block = json.loads(letter)["dead_letter"]
    assert (block["reason"], block.get("error")) == ("failed", None)


def test_a_write_of_dead_letters_leaves_out_what_the_broker_refuses(
    spark: Any, request: pytest.FixtureRequest, queue: str
) -> None:
    server = request.getfixturevalue(SERVERS["rabbitmq"])
    small, large = order(queue, note="small"), sized(queue, 20_000)
    rows = [(bytearray(body), queue, {"reason": "not ours"}) for body in (small, large)]
    frame = spark.createDataFrame(rows, "body BINARY, queue STRING, dead_letter STRUCT<reason STRING>")
    with limited(server):
        frame.coalesce(1).write.format("babelqueue").options(url=server.url).mode("append").save()
    # RabbitMQ takes what comes before a refusal, and again what is repeated.
    letters = sorted({*_letters(server.url, f"{queue}.dlq")}, key=len)
    assert letters[-1] == large
    assert {json.loads(letter)["dead_letter"]["reason"] for letter in letters[:-1]} == {"not ours"}


def _letters(url: str, queue: str) -> list[bytes]:
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        eventually(lambda: binding.backlog(queue) >= 2)
        found: list[bytes] = binding.claim(queue, 10, 1 << 30).column("body").to_pylist()
        return found
