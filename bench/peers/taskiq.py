"""Taskiq: processes with an event loop each."""

from __future__ import annotations

import asyncio

from taskiq_aio_pika import AioPikaBroker, Exchange, Queue
from taskiq_redis import RedisStreamBroker

from bench.peers.work import IN_FLIGHT, REDELIVERED_AFTER, told

URL, QUEUE, WORK = told()

if URL.startswith("redis"):
    broker = RedisStreamBroker(
        URL,
        queue_name=QUEUE,
        idle_timeout=REDELIVERED_AFTER * 1000,
        unacknowledged_lock_timeout=REDELIVERED_AFTER,
    )
else:
    broker = AioPikaBroker(URL, qos=IN_FLIGHT, exchange=Exchange(name=QUEUE), task_queues=[Queue(name=QUEUE)])


@broker.task(task_name="work")
async def work(number: int) -> None:
    await WORK.awaited(number)


def fill(count: int) -> None:
    """Queue so many tasks."""

    async def kick() -> None:
        await broker.startup()
        for number in range(count):
            await work.kiq(number)
        await broker.shutdown()

    asyncio.run(kick())
