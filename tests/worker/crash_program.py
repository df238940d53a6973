"""A user's program: works off queues in one query, until nothing is left in them.

Run as a process of its own: `crash_program.py URL STORE FOLDER QUEUE…`; STORE is the URL of a Redis for idempotency,
or `none`. Each run of a handler leaves a line in `<folder>/<queue>-runs` (the number of the message, and its
attempts), each effect one in `<folder>/<queue>-effects`. `CRASH_CALLS` says how many calls are under way, and whether
they are async: `50 async`. `CRASH_ENVELOPE` is the option `envelope`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from babelqueue_spark.worker import Message, Outgoing, Policy, RedisStore, Worker
from tests.crash.program import session
from tests.streams import backlog, short_claims, started_again
from tests.worker import crash_points
from tests.worker.crash_rules import DEADLY, LAST_ATTEMPT, fails, replies

ENVELOPE = os.environ.get("CRASH_ENVELOPE", "babelqueue")
ROUNDS = 20
SECONDS = 300


def note(path: Path, line: str) -> None:
    """Append a line, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def worker_of(url: str, store: str, folder: Path) -> Worker:
    remembered = None if store == "none" else RedisStore(store, prefix=f"{folder}:", lease=5)
    worker = Worker(
        {"url": url, "envelope": ENVELOPE},
        state=str(folder / "worker"),
        policy=Policy(max_attempts=LAST_ATTEMPT, release_delay=1),
        idempotency=remembered,
    )

    concurrency, kind = os.environ.get("CRASH_CALLS", "1 plain").split()

    def begin(message: Message) -> int:
        crash_points.enter(message.queue)
        number: int = message.data["n"]
        note(folder / f"{message.queue}-runs", f"{number} {message.attempts}")
        return number

    def end(message: Message, number: int) -> Outgoing | None:
        if number == DEADLY:
            crash_points.reached("in a handler")
        if fails(number, message.attempts):
            raise ValueError(f"message {number} fails")
        note(folder / f"{message.queue}-effects", f"{number}")
        if not replies(number):
            return None
        return Outgoing(job="urn:reply", data={"to": number}, queue=f"{message.queue}-replies")

    def handle(message: Message) -> Outgoing | None:
        number = begin(message)
        if concurrency != "1":
            time.sleep(0.01)
        return end(message, number)

    async def handle_later(message: Message) -> Outgoing | None:
        number = begin(message)
        await asyncio.sleep(0.01)
        return end(message, number)

    chosen = handle_later if kind == "async" else handle
    worker.handler("urn:*", concurrency=int(concurrency))(chosen)
    return worker


def main(
    url: str,
    store: str,
    folder: Path,
    queues: list[str],
    make: Callable[[str, str, Path], Worker] = worker_of,
) -> None:
    spark = session()
    worker = make(url, store, folder)

    def each(frame: Any, number: int) -> None:
        worker(frame, number)
        for queue in queues:
            crash_points.reached("in foreachBatch", queue)

    def start() -> StreamingQuery:
        return (
            spark.readStream.format("babelqueue")
            .options(url=url, queue=",".join(queues), journalLocation=str(folder / "journal"))
            .option("envelope", ENVELOPE)
            .options(numPartitions=str(len(queues)), maxFetchTime="2 minutes", **short_claims(url))
            .load()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    for _ in range(ROUNDS):
        query = start()
        while not ended(query):
            query = started_again(query, start)
        if not any(backlog(url, queue) for queue in queues):
            return
    raise AssertionError(f"the queues are not empty after {ROUNDS} rounds")


def ended(query: StreamingQuery) -> bool:
    """Whether it came to a good end."""
    try:
        return bool(query.awaitTermination(SECONDS))
    except StreamingQueryException:
        return False


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
