"""RabbitMQ: queue to DataFrame and back, against a bare pika loop."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
from pika.adapters.select_connection import SelectConnection

from babelqueue_spark.bindings.rabbitmq.messages import properties
from babelqueue_spark.connector.options import write_options
from bench.redis import body, session
from bench.table import Row, in_turns, new_queue, rate, read_rate, row, write_rate
from tests.servers.rabbitmq import RabbitServer
from tests.streams import outgoing

PER_TRIGGER = 100_000
MESSAGES = 2 * PER_TRIGGER
PREFETCH = 2_000
ACKNOWLEDGED_AT_ONCE = 1_000


def rows() -> list[Row]:
    """The RabbitMQ rows of the design."""
    bodies = [body(number) for number in range(MESSAGES)]
    half = bodies[:PER_TRIGGER]
    with RabbitServer() as server:
        spark = session()
        read(spark, server.url, bodies[:1000], claimers=1)
        found = in_turns(
            {
                "publish": lambda: bare_publish(server.url, half),
                "write": lambda: write_rate(spark, server.url, half, repeats=1),
                "consume": lambda: bare_consume(server.url, bodies),
                "one": lambda: read(spark, server.url, bodies, claimers=1),
                "two": lambda: read(spark, server.url, bodies, claimers=2),
            }
        )
        spark.stop()
    bare = ("bare basic_consume, multiple acks", found["consume"])
    return [
        row("RabbitMQ to DataFrame, one partition", found["one"], *bare, 0.8),
        row("RabbitMQ to DataFrame, two partitions", found["two"], *bare, None),
        row(
            "DataFrame to RabbitMQ, one partition",
            found["write"],
            "bare pipelined confirms",
            found["publish"],
            0.8,
        ),
    ]


def read(spark: Any, url: str, bodies: list[bytes], claimers: int) -> float:
    """Messages a second of the batches after the first."""
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "numPartitions": claimers}
    with tempfile.TemporaryDirectory() as folder:
        return read_rate(spark, url, filled(url, bodies), len(bodies), Path(folder), **options)


def filled(url: str, bodies: list[bytes]) -> str:
    """A new queue with these messages."""
    queue = new_queue()
    send(url, queue, outgoing(bodies))
    return queue


def send(url: str, queue: str, messages: pa.RecordBatch) -> None:
    with write_options({"url": url}).binding() as binding:
        size = binding.capabilities.publish_batch
        for first in range(0, len(messages), size):
            binding.publish(queue, messages.slice(first, size))


def bare_publish(url: str, bodies: list[bytes]) -> float:
    """Messages a second of one connection with many unconfirmed messages, properties made before."""
    posts = list(zip(bodies, properties(outgoing(bodies)), strict=True))
    queue = new_queue()
    return rate(len(bodies), lambda: _Pipeline(url, queue, posts).run(), repeats=1)


class _Pipeline:
    """Publishes all, at most `PREFETCH` of them unconfirmed."""

    def __init__(self, url: str, queue: str, posts: list[tuple[bytes, pika.BasicProperties]]) -> None:
        self._queue, self._posts = queue, posts
        self._sent = self._confirmed = 0
        self._connection = SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )

    def run(self) -> None:
        self._connection.ioloop.start()
        assert self._confirmed == len(self._posts)

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.queue_declare(self._queue, durable=True)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._send())

    def _send(self) -> None:
        while self._sent < len(self._posts) and self._sent - self._confirmed < PREFETCH:
            content, given = self._posts[self._sent]
            self._channel.basic_publish("", self._queue, content, given, mandatory=True)
            self._sent += 1

    def _on_confirm(self, frame: Any) -> None:
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        if self._confirmed >= len(self._posts):
            self._connection.close()
        else:
            self._send()


def bare_consume(url: str, bodies: list[bytes]) -> float:
    """Messages a second of one process that consumes a queue, and acknowledges in bulk."""
    queue = filled(url, bodies)
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    seen = 0

    def received(_: Any, method: Any, __: Any, ___: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % ACKNOWLEDGED_AT_ONCE == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == len(bodies):
            channel.stop_consuming()

    def run() -> None:
        channel.basic_consume(queue, received)
        channel.start_consuming()

    speed = rate(len(bodies), run, repeats=1)
    connection.close()
    return speed
