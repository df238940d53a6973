"""FastStream: processes with an event loop each, of a stream of Redis or a queue of RabbitMQ."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from faststream import FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis

from bench.peers.work import IN_FLIGHT, REDELIVERED_AFTER, told

URL, QUEUE, WORK = told()


async def work(number: int) -> None:
    await WORK.awaited(number)


broker: Any
if URL.startswith("redis"):
    broker = RedisBroker(URL, logger=None)
    place = {"stream": QUEUE}
    of_group: dict[str, Any] = {"group": "workers", "consumer": str(os.getpid())}
    broker.subscriber(stream=StreamSub(QUEUE, max_records=100, **of_group), max_workers=IN_FLIGHT)(work)
    broker.subscriber(stream=StreamSub(QUEUE, min_idle_time=REDELIVERED_AFTER * 1000, **of_group))(work)
else:
    queue = RabbitQueue(QUEUE, durable=True)
    broker = RabbitBroker(URL, logger=None, default_channel=Channel(prefetch_count=IN_FLIGHT))
    place = {"queue": queue}
    broker.subscriber(queue)(work)

app = FastStream(broker, logger=None)


def fill(count: int) -> None:
    """Publish so many numbers as JSON."""

    async def publish() -> None:
        async with broker:
            if "queue" in place:
                await broker.declare_queue(place["queue"])
            else:
                await Redis.from_url(URL).xgroup_create(QUEUE, "workers", id="0", mkstream=True)
            for number in range(count):
                await broker.publish(number, **place)

    asyncio.run(publish())
