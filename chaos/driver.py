"""The user's program of a trial: a stream into Parquet and a worker, each started again when it ends.

    python -m chaos.driver DESCRIPTION

It runs until `<folder>/stop-driver` is there. It leaves, in the folder of the trial:

    batches            of each attempt at a batch of the stream: number, digests of all and of bodies, time
    table/batch=N      the rows of a batch, as Parquet
    effects            the number of each message whose handler came to its end
    frames/batch=N     the numbers that the DataFrame handler got
    failures           what ended a query

DESCRIPTION is the file that `chaos.trial` writes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from babelqueue_spark.worker import Message, Outgoing, Policy, RedisStore, Reject, SqlStore, Worker
from chaos import messages
from chaos.checker import digest
from chaos.notes import note

WAIT = 0.3
FIRST_SECONDS = 15.0
LAST_ATTEMPT = 3


def session(given: dict[str, Any]) -> SparkSession:
    """Spark as the trial asks for it: in this process, on a cluster, or over Connect."""
    builder = SparkSession.builder
    builder = builder.remote("local[2,4]") if given["connect"] else builder.master(given["master"])
    on_executors = {
        f"spark.executorEnv.{name}": os.environ[name]
        for name in ("PYTHONPATH", "CHAOS_CLOCK", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID")
        if name in os.environ
    }
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.cores.max", "4")
        .config("spark.executor.memory", "1g")
        .config(map={**on_executors, "spark.python.worker.faulthandler.enabled": "false"})
        .getOrCreate()
    )


def into_table(folder: Path, frame: Any, number: int) -> None:
    """Write a batch of the stream, and note what it held; a repeated batch replaces what it wrote."""
    rows = frame.collect()
    bodies = [bytes(row.body) for row in rows]
    everything = digest(repr(row).encode() for row in rows)
    note(folder / "batches", [number, everything, digest(bodies), time.time()])
    frame.select("body", "queue", "error").write.mode("overwrite").parquet(f"{folder}/table/batch={number}")


def worker_of(given: dict[str, Any], folder: Path) -> Worker:
    """The worker with its handlers; its store for idempotency is the Redis, or a file of SQLite."""
    at_redis = given["url"].startswith("redis")
    replies = given["replies"]
    worker = Worker(
        {**given["worker_options"], "url": given["url"]},
        state=f"{given['journals']}/worker",
        checkpoint=f"{folder}/worker-checkpoint" if given["connect"] else None,
        policy=Policy(max_attempts=LAST_ATTEMPT, release_delay=1),
        idempotency=RedisStore(given["url"], lease=20)
        if at_redis
        else SqlStore(f"sqlite:///{folder}/handled.db", lease=20),
    )

    @worker.handler(messages.PLAIN)
    def handle(message: Message) -> Outgoing | None:
        number = message.data["n"]
        if messages.is_rejected(number):
            raise Reject("bad_number")
        if messages.is_retried(number) and message.attempts == 0:
            raise ValueError("the first attempt fails")
        note(folder / "effects", number)
        if not messages.is_replied(number):
            return None
        return Outgoing(job=messages.REPLY, data={"n": number}, queue=replies)

    @worker.dataframe_handler(messages.FRAMES, data_schema="n BIGINT")
    def collect(frame: Any, batch: int) -> None:
        frame.selectExpr("data.n AS n").write.mode("overwrite").parquet(f"{folder}/frames/batch={batch}")

    return worker


def start(spark: SparkSession, given: dict[str, Any], name: str) -> StreamingQuery:
    """Start the query of a name, `stream` or `worker`."""
    folder = Path(given["folder"])
    each = partial(into_table, folder) if name == "stream" else worker_of(given, folder)
    return (
        spark.readStream.format("babelqueue")
        .options(**given["options"], url=given["url"], queue=given["reads"][name])
        .options(journalLocation=f"{given['journals']}/{name}", **given["journal_options"])
        .options(numPartitions="2", maxMessagesPerTrigger="2000")
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", f"{folder}/{name}-checkpoint")
        .queryName(name)
        .start()
    )


def keep_running(
    running: dict[str, StreamingQuery], starts: dict[str, Callable[[], StreamingQuery]], failures: Path
) -> None:
    """Start each query that does not run; note what ended it."""
    for name, begin in starts.items():
        query = running.get(name)
        if query is not None and query.isActive:
            continue
        try:
            if query is not None:
                note(failures, [name, time.time(), str(query.exception())])
            running[name] = begin()
            _await_first_batch(running[name])
        except Exception as error:  # noqa: BLE001 (the broker may be away: it is tried again)
            note(failures, [name, time.time(), str(error)])


def _await_first_batch(query: StreamingQuery) -> None:
    """Wait until a query has got its planner: Spark damages what two share that start theirs at once."""
    deadline = time.monotonic() + FIRST_SECONDS
    while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
        time.sleep(0.1)


def main(description: Path) -> None:
    given = json.loads(description.read_text())
    folder = Path(given["folder"])
    spark = session(given)
    starts = {name: partial(start, spark, given, name) for name in given["reads"]}
    running: dict[str, StreamingQuery] = {}
    while not (folder / "stop-driver").exists():
        gateway = SparkContext._gateway
        if gateway is not None and gateway.proc.poll() is not None:
            os._exit(1)  # an exit in order would wait for the JVM, which has ended
        keep_running(running, starts, folder / "failures")
        time.sleep(WAIT)
    for query in running.values():
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
