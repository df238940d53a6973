"""Ours: a stream that reads the queue in two tasks, and a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis as client

from babelqueue_spark.worker import Message, RedisStore, Worker
from bench.peers.run import Run, Supervise
from bench.peers.work import IN_FLIGHT
from bench.rabbitmq import send
from bench.redis import body, push
from tests.streams import outgoing

URN = "urn:babel:orders:created"
BATCHES = 5


@dataclass(frozen=True)
class Ours:
    """The worker of a Spark session."""

    spark: Any
    title: str = "worker"

    def fill(self, run: Run) -> None:
        bodies = [body(number) for number in range(run.count)]
        if run.url.startswith("redis"):
            push(client.Redis.from_url(run.url), run.queue, bodies)
        else:
            send(run.url, run.queue, outgoing(bodies))

    @contextmanager
    def running(self, run: Run) -> Iterator[Supervise]:
        place = f"{run.ledger}-stream"
        frame = (
            self.spark.readStream.format("babelqueue")
            .options(url=run.url, queue=run.queue, journalLocation=f"{place}/journal")
            .options(maxMessagesPerTrigger=run.count // BATCHES, numPartitions=2)
            .load()
        )
        writer = frame.writeStream.foreachBatch(worker_of(run, f"{place}/worker"))
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()

        def supervise() -> None:
            if error := query.exception():
                raise error

        try:
            yield supervise
            query.awaitTermination()
        finally:
            query.stop()


def worker_of(run: Run, state: str) -> Worker:
    """The worker, with the store that it needs to do a message once."""
    store = None if run.store is None else RedisStore(run.store)
    worker = Worker({"url": run.url}, state=state, idempotency=store)

    def called(message: Message) -> None:
        run.work(message.data["order_id"])

    async def awaited(message: Message) -> None:
        await run.work.awaited(message.data["order_id"])

    if run.seconds:
        worker.handler(URN, concurrency=IN_FLIGHT)(awaited)
    else:
        worker.handler(URN)(called)
    return worker
