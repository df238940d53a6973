"""Metrics: a query that is observed, against the same query alone, over the same messages."""

from __future__ import annotations

import tempfile
from pathlib import Path

import redis as client

from babelqueue_spark.metrics import observe
from bench.redis import PER_TRIGGER, body, push, session
from bench.table import Row, in_turns, read_rate, row
from tests.servers import RedisServer

BATCHES = 8
ROUNDS = 32


def rows() -> list[Row]:
    """Batches of 100,000 messages, in turns; the observer polls its queue every 15 s."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        redis = client.Redis.from_url(server.url)
        bodies = [body(number) for number in range(BATCHES * PER_TRIGGER)]
        spark = session()

        def read(name: str) -> float:
            push(redis, name, bodies)
            with tempfile.TemporaryDirectory(dir=folder) as place:
                options = {"maxMessagesPerTrigger": PER_TRIGGER, "maxBytesPerTrigger": "1g"}
                return read_rate(spark, server.url, name, len(bodies), Path(place), **options)

        def observed() -> float:
            with observe(spark, "0", queues=[{"url": server.url, "queue": "observed"}]):
                return read("observed")

        read("warm")
        found = in_turns({"alone": lambda: read("alone"), "observed": observed}, ROUNDS)
        spark.stop()
        return [
            row(
                "Redis to nothing, observed",
                found["observed"],
                "the same, not observed",
                found["alone"],
                0.99,
            )
        ]
