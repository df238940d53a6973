"""Handlers that wait, through Spark: many at once, and all ended with their task."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from babelqueue_spark.testing import eventually
from babelqueue_spark.worker import Message, Outgoing, Worker
from tests.streams import backlog, publish, stream
from tests.worker.queues import order, taken, work_off

pytestmark = pytest.mark.spark

MANY = 50


@asynccontextmanager
async def gate() -> AsyncIterator[list[asyncio.Future[None]]]:
    yield []


def test_async_handlers_of_a_task_wait_together(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    worker = Worker({"url": url}, state=str(tmp_path / "worker"))

    @worker.handler("urn:*", concurrency=MANY, partition_setup=gate, rate_limit="1000000/s total")
    async def run(message: Message, waiting: list[asyncio.Future[None]]) -> Outgoing:
        """Return when all are under way, the last one first."""
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) == MANY:
            waiting[-1].set_result(None)
        number: int = message.data["n"]
        await waiting[number]
        if number:
            waiting[number - 1].set_result(None)
        return Outgoing(job="urn:done", data={"n": number}, queue=f"{queue}-done")

    publish(url, queue, [order(queue, n=number) for number in range(MANY)])
    work_off(spark, worker, url, queue, tmp_path)
    assert worker.counts.acked == MANY
    answers = taken(url, f"{queue}-done", MANY)
    assert [body.split(b'"n":')[1].split(b"}")[0] for body in answers] == [b"%d" % n for n in range(MANY)]


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_query_that_is_stopped_ends_all_calls(
    spark: Any, url: str, queue: str, tmp_path: Path, kind: str
) -> None:
    worker = Worker({"url": url}, state=str(tmp_path / "worker"))
    started = tmp_path / "started"
    started.mkdir()

    def begin(message: Message) -> None:
        (started / f"{message.data['n']}-{os.getpid()}").touch()

    async def run_later(message: Message) -> None:
        begin(message)
        await asyncio.Event().wait()

    def run(message: Message) -> None:
        begin(message)
        threading.Event().wait()

    worker.handler("urn:*", concurrency=MANY)(run_later if kind == "async" else run)
    publish(url, queue, [order(queue, n=number) for number in range(MANY)])
    query = (
        stream(spark, url, queue, tmp_path)
        .writeStream.foreachBatch(worker)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    eventually(lambda: len(list(started.iterdir())) == MANY)
    [process] = {int(path.name.split("-")[1]) for path in started.iterdir()}
    query.stop()
    eventually(lambda: not psutil.pid_exists(process) or psutil.Process(process).status() == "zombie")
    assert backlog(url, queue) == 0  # the batch is not done: its messages are still claimed
