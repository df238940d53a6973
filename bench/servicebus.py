"""Service Bus: queue to DataFrame and back, against bare client loops, all on the stand-in."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.servicebus import ServiceBusBinding
from babelqueue_spark.bindings.servicebus.messages import entries
from bench.redis import body, session
from bench.table import Row, new_queue, read_rate, row, write_rate
from tests.servers.servicebus import ServiceBusServer
from tests.streams import outgoing

MESSAGES = 60_000
"""So many that the half second in which the client connects is no part worth naming."""
PER_TRIGGER = 20_000
PROCESSES = 2
WINDOW = 500
SURPLUS = 2 * PROCESSES * WINDOW
"""What one bare process has locked beyond its share, and the other one would wait for in vain."""
LOCK_SECONDS = 300.0


def rows() -> list[Row]:
    """What the issue asks for Service Bus: 0.8 of the bare client, whichever of its two faces is faster."""
    bodies = [body(number) for number in range(MESSAGES)]
    with ServiceBusServer(lock_seconds=LOCK_SECONDS) as server, tempfile.TemporaryDirectory() as folder:
        spark = session()
        work = "Service Bus to DataFrame, local[2]"
        streamed = read(spark, server, filled(server, bodies), Path(folder))
        written = write_rate(spark, server.url, bodies)
        spark.stop()
        few, more = MESSAGES // 4, MESSAGES // 4 + SURPLUS
        in_flight = bare_loops(server, filled(server, bodies[:more]), bare_in_flight, few)
        one_by_one = bare_loops(server, filled(server, bodies[:more]), bare_one_by_one, few)
        return [
            row(work, streamed, f"bare, {PROCESSES} processes, completes in flight", in_flight, 0.8),
            row(work, streamed, f"bare, {PROCESSES} processes, completes one by one", one_by_one, 0.8),
            row(
                "DataFrame to Service Bus, one partition",
                written,
                "bare batches, the same properties",
                bare_publish(server, bodies),
                0.8,
            ),
        ]


def filled(server: ServiceBusServer, bodies: list[bytes]) -> str:
    """A new queue with these messages."""
    queue = new_queue()
    with binding(server) as bus:
        send(bus, queue, bodies)
    return queue


def read(spark: Any, server: ServiceBusServer, queue: str, folder: Path) -> float:
    """Messages a second of the batches after the first."""
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "numPartitions": PROCESSES}
    return read_rate(spark, server.url, queue, MESSAGES, folder, **options)


def bare_loops(server: ServiceBusServer, queue: str, loop: Callable[..., None], messages: int) -> float:
    """Messages a second of processes that only receive and complete, once all of them are connected."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES + 1)
    share = messages // PROCESSES
    processes = [
        context.Process(target=loop, args=(server.url, queue, share, barrier)) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    started = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    return share * PROCESSES / seconds


def bare_in_flight(url: str, queue: str, share: int, barrier: Any) -> None:
    """Receive, and complete hundreds at once, with the asynchronous client."""

    async def run() -> None:
        async with (
            AsyncServiceBusClient.from_connection_string(url) as client,
            client.get_queue_receiver(queue, prefetch_count=WINDOW) as receiver,
        ):
            barrier.wait()
            left = share
            while left:
                found = await receiver.receive_messages(min(left, WINDOW), 10)
                await asyncio.gather(*(receiver.complete_message(message) for message in found))
                left -= len(found)
            barrier.wait()

    asyncio.run(run())


def bare_one_by_one(url: str, queue: str, share: int, barrier: Any) -> None:
    """Receive hundreds, and complete each, as the client's samples do."""
    with (
        ServiceBusClient.from_connection_string(url) as client,
        client.get_queue_receiver(queue, prefetch_count=WINDOW) as receiver,
    ):
        barrier.wait()
        left = share
        while left:
            found = receiver.receive_messages(min(left, WINDOW), 10)
            for message in found:
                receiver.complete_message(message)
            left -= len(found)
        barrier.wait()


def bare_publish(server: ServiceBusServer, bodies: list[bytes]) -> float:
    """Messages a second of the client's batches, as full as they get, with the same properties."""
    made = [entry.message for entry in entries(outgoing(bodies), None)]
    given: list[dict[str, Any]] = [
        {
            "subject": each.subject,
            "correlation_id": each.correlation_id,
            "message_id": each.message_id,
            "content_type": each.content_type,
            "application_properties": each.application_properties,
        }
        for each in made
    ]
    with (
        ServiceBusClient.from_connection_string(server.url) as client,
        client.get_queue_sender("bare") as sender,
    ):

        def run() -> None:
            batch = sender.create_message_batch()
            for content, properties in zip(bodies, given, strict=True):
                message = ServiceBusMessage(content, **properties)
                try:
                    batch.add_message(message)
                except MessageSizeExceededError:
                    sender.send_messages(batch)
                    batch = sender.create_message_batch()
                    batch.add_message(message)
            sender.send_messages(batch)

        return once(len(bodies), run)


def send(bus: ServiceBusBinding, queue: str, bodies: list[bytes]) -> None:
    size = bus.capabilities.publish_batch
    for first in range(0, len(bodies), size):
        bus.publish(queue, outgoing(bodies[first : first + size]))


def once(count: int, run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return count / (time.perf_counter() - started)


def binding(server: ServiceBusServer) -> ServiceBusBinding:
    return ServiceBusBinding(BindingConfig(url=server.url))
