"""Dead letters near the limit of their queue: the block goes before the message does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.worker import Message, Reject, Worker
from tests.bindings.kafka_peers import records
from tests.brokers import SERVERS
from tests.servers import Server
from tests.servers.kafka import KafkaServer
from tests.servers.rabbitmq import RabbitServer
from tests.streams import publish
from tests.worker.queues import order, taken, work_off

pytestmark = pytest.mark.spark

LIMITS: dict[str, tuple[int, Mapping[str, str]]] = {
    "sqs": (2_000, {"sqs.max_message_bytes": "2000"}),
    "servicebus": (260_800, {}),
    "kafka": (2_750, {"kafka.message.max.bytes": "4000"}),
    "rabbitmq": (20_000, {}),
}
"""Broker → bytes of a body that fits, while it would not with a block; options that set the limit.

RabbitMQ tells its limit only by refusing a message.
"""


@contextmanager
def limited(server: Server) -> Iterator[None]:
    """A server that takes no more than `LIMITS` says, where that is its own setting."""
    if isinstance(server, RabbitServer):
        set_size = "application:set_env(rabbit, max_message_size, {})."
        server.control("eval", set_size.format(20_000))
        yield
        server.control("eval", set_size.format(134_217_728))
    else:
        yield


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
    worker = Worker({"url": server.url, **limit}, journal=str(tmp_path / "ledger"), max_attempts=1)

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
