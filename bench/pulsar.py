"""Pulsar: topic to DataFrame and back, against bare pulsar-client loops."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar as client

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.pulsar import PulsarBinding
from babelqueue_spark.bindings.pulsar.messages import properties
from bench.redis import body, session
from bench.table import Row, in_turns, new_queue, read_rate, row, write_rate
from tests.servers.pulsar import PulsarServer
from tests.streams import outgoing

MESSAGES = 200_000
"""Two triggers of the default size, of which the second counts."""
WARM = 30_000
WRITTEN = 100_000
PREFETCH = 5_000
KINDS = {"single messages": False, "batches": True}


def rows() -> list[Row]:
    """What the design asks for Pulsar, with producers that send singly and in batches."""
    bodies = [body(number) for number in range(MESSAGES)]
    with PulsarServer() as server:
        bare = client.Client(server.url, logger=client.ConsoleLogger(client.LoggerLevel.Error))
        spark = session()
        found = [
            each
            for kind, batching in KINDS.items()
            for each in (
                *reads(kind, spark, server, bare, bodies, batching),
                write(kind, spark, server, bare, bodies[:WRITTEN], batching),
            )
        ]
        spark.stop()
        bare.close()
    return found


def reads(
    kind: str, spark: Any, server: PulsarServer, bare: client.Client, bodies: list[bytes], batching: bool
) -> list[Row]:
    def bare_loop(some: list[bytes]) -> float:
        return bare_receive(bare, filled(server, some, batching), len(some))

    def ours(some: list[bytes], claimers: int) -> float:
        queue = filled(server, some, batching)
        with tempfile.TemporaryDirectory() as folder:
            return read_rate(spark, server.url, queue, len(some), Path(folder), numPartitions=claimers)

    bare_loop(bodies[:WARM])  # the broker's first pass is the compiler's
    ours(bodies[:WARM], 2)
    found = in_turns(
        {
            "bare": lambda: bare_loop(bodies),
            "one": lambda: ours(bodies, 1),
            "two": lambda: ours(bodies, 2),
        }
    )
    peer = "bare receive and acknowledge"
    return [
        row(f"Pulsar to DataFrame, {kind}, one claimer", found["one"], peer, found["bare"], None),
        row(f"Pulsar to DataFrame, {kind}, two claimers", found["two"], peer, found["bare"], 0.7),
    ]


def write(
    kind: str, spark: Any, server: PulsarServer, bare: client.Client, bodies: list[bytes], batching: bool
) -> Row:
    theirs = once(len(bodies), lambda: bare_send(bare, new_queue(), bodies, batching))
    written = write_rate(spark, server.url, bodies, **{"pulsar.batching": str(batching).lower()})
    return row(f"DataFrame to Pulsar, {kind}, one partition", written, "bare send_async", theirs, 0.7)


def filled(server: PulsarServer, bodies: list[bytes], batching: bool) -> str:
    """A new topic with these messages."""
    queue = new_queue()
    send(server, queue, bodies, batching)
    return queue


def send(server: PulsarServer, queue: str, bodies: list[bytes], batching: bool) -> None:
    """By the binding, with the properties of the contract, confirmed."""
    options = {"batching": str(batching).lower()}
    with PulsarBinding(BindingConfig(url=server.url, client_options=options)) as binding:
        size = binding.capabilities.publish_batch
        for first in range(0, len(bodies), size):
            binding.publish(queue, outgoing(bodies[first : first + size]))


def bare_send(bare: client.Client, queue: str, bodies: list[bytes], batching: bool) -> None:
    """By send_async with the same properties, confirmed."""
    producer = bare.create_producer(
        queue, batching_enabled=batching, block_if_queue_full=True, max_pending_messages=PREFETCH
    )
    confirmed = threading.Semaphore(0)
    for content, given in zip(bodies, list(properties(outgoing(bodies))), strict=True):
        producer.send_async(content, lambda *_: confirmed.release(), properties=given)
    for _ in bodies:
        confirmed.acquire()
    producer.close()


def bare_receive(bare: client.Client, queue: str, count: int) -> float:
    """Messages a second of one process that receives, looks at the body and acknowledges."""
    consumer = bare.subscribe(
        queue, "babelqueue", consumer_type=client.ConsumerType.Shared, receiver_queue_size=PREFETCH
    )

    def run() -> None:
        for _ in range(count):
            message = consumer.receive(timeout_millis=30_000)
            message.data()
            consumer.acknowledge(message)

    speed = once(count, run)
    consumer.close()
    return speed


def once(count: int, run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return count / (time.perf_counter() - started)
