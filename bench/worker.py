"""The worker: routing with a handler that does nothing, against the plain read; and beside its peers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import redis as client

from babelqueue_spark.worker import Worker
from bench.peers import compare
from bench.redis import PER_TRIGGER, body, push, session
from bench.table import Row, in_turns, row, steady_rate
from tests.servers import RedisServer

ROUNDS = 5


def rows() -> list[Row]:
    """Against the plain read, and beside its peers."""
    return [against_plain_read(), *compare.rows()]


def against_plain_read() -> Row:
    """100,000 messages a batch, in turns."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        redis = client.Redis.from_url(server.url)
        bodies = [body(number) for number in range(PER_TRIGGER)]
        spark = session()
        worker = Worker({"url": server.url}, state=f"{folder}/worker")
        worker.handler("urn:babel:orders:*")(lambda _: None)

        def through(kind: str, sink: Any) -> float:
            push(redis, kind, bodies)
            return batch_rate(spark, server.url, kind, Path(folder) / kind, sink)

        found = in_turns(
            {
                "plain": lambda: through("plain", lambda writer: writer.format("noop")),
                "worked": lambda: through("worked", lambda writer: writer.foreachBatch(worker)),
            },
            ROUNDS,
        )
        spark.stop()
        assert worker.counts.acked == ROUNDS * PER_TRIGGER
        return row(
            f"worker, {PER_TRIGGER:,} messages, no-op handler",
            found["worked"],
            "plain read of them, Redis, local[2]",
            found["plain"],
            0.6,
        )


def batch_rate(spark: Any, url: str, queue: str, folder: Path, sink: Any) -> float:
    """Messages a second of the one batch that takes what is in the queue."""
    frame = (
        spark.readStream.format("babelqueue")
        .options(url=url, queue=queue, journalLocation=str(folder / "journal"))
        .options(maxMessagesPerTrigger=PER_TRIGGER, maxBytesPerTrigger="1g")
        .load()
    )
    query = (
        sink(frame.writeStream)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return steady_rate(query.recentProgress)
