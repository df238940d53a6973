"""Typed tables of a catalog, against the same tables written by hand: two URNs, Redis to Parquet."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import redis as client
from babelqueue.codec import EnvelopeCodec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.catalog import Catalog
from bench.catalog import SCHEMA, URN, payload
from bench.redis import push, session
from bench.table import Row, in_turns, new_queue, row, steady_rate
from tests.servers import RedisServer

MESSAGES = 50_000
ROUNDS = 3
OTHER = "urn:babel:orders:changed"
CATALOG = Catalog({URN: SCHEMA, OTHER: SCHEMA})


def rows() -> list[Row]:
    """One batch of two URNs, in turns; the first turn of each is for warmth."""
    bodies = [body(number) for number in range(MESSAGES)]
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        redis = client.Redis.from_url(server.url)
        spark = session()

        def measured(start: Callable[[DataFrame, Path], Any]) -> float:
            queue = new_queue()
            push(redis, queue, bodies)
            place = Path(folder) / queue
            messages = (
                spark.readStream.format("babelqueue")
                .options(url=server.url, queue=queue, journalLocation=str(place / "journal"))
                .options(maxMessagesPerTrigger=MESSAGES, maxBytesPerTrigger="1g")
                .load()
            )
            query = start(messages, place)
            query.awaitTermination()
            return steady_rate(query.recentProgress)

        works = {"tables": partial(measured, by_catalog), "by hand": partial(measured, by_hand)}
        in_turns(works, 1)
        found = in_turns(works, ROUNDS)
        spark.stop()
    return [
        row(
            f"Catalog.tables, {MESSAGES:,} messages of two URNs",
            found["tables"],
            "from_json and a write for each URN, no verdicts",
            found["by hand"],
            None,
        )
    ]


def body(number: int) -> bytes:
    """An envelope of one of two URNs."""
    urn = (URN, OTHER)[number % 2]
    made = EnvelopeCodec.make(urn, {"of": "the bench"}, queue="bench")
    return str(EnvelopeCodec.encode(made)).replace('{"of":"the bench"}', payload(number)).encode()


def by_catalog(messages: DataFrame, place: Path) -> Any:
    """Start the query under measurement."""
    return CATALOG.tables(messages, str(place / "lake"), availableNow=True)


def by_hand(messages: DataFrame, place: Path) -> Any:
    """Start what one writes without a catalog."""

    def write(batch: DataFrame, number: int) -> None:
        batch.persist()
        for urn in CATALOG.urns:
            data = F.from_json("data", CATALOG.data_type(urn).simpleString()).alias("data")
            its = batch.where((F.col("job") == urn) & F.col("error").isNull())
            columns = its.select("job", "trace_id", "meta.id", data, F.col("data").alias("data_json"))
            columns.write.mode("overwrite").parquet(f"{place}/lake/{urn[-7:]}/part={number}")
        batch.unpersist()

    return (
        messages.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
