"""Kafka: what a queue costs to read beside a log, by Spark's own Kafka source and `from_json`."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import redis as client
from pyspark.sql.functions import col, from_json

from bench import redis
from bench.redis import PER_TRIGGER, body, session
from bench.table import Row, row, steady_rate
from tests.servers import RedisServer
from tests.servers.jars import jars
from tests.servers.kafka import KafkaServer

#: What the JVM runs is not all compiled before.
WARM_ROUNDS = 5
ROUNDS = 3
PARTITIONS = 4
MESSAGES = 500_000
TOPIC = "bench"
ENVELOPE = """
job STRING, trace_id STRING, data STRING, attempts INT,
meta STRUCT<id STRING, queue STRING, lang STRING, schema_version INT, created_at BIGINT>
"""
POM = Path(__file__).with_name("kafka-pom.xml")


def rows() -> list[Row]:
    """The Kafka row of the design."""
    source = jars(POM)
    # A JVM takes jars only when it starts, and another module may have started this process's one.
    own_process = ProcessPoolExecutor(1, get_context("spawn"))
    with RedisServer() as queue, KafkaServer(PARTITIONS) as log, own_process as process:
        ours, theirs = process.submit(compare, queue.url, log.address, source).result()
    return [row("Redis to DataFrame, journal on", ours, "Spark's Kafka source and from_json", theirs, 0.7)]


def compare(url: str, address: str, source: Path) -> tuple[float, float]:
    """Messages a second out of Redis and out of Kafka, in turns: noise hits both."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, source.glob('*.jar')))} pyspark-shell"
    spark = session()
    queue = client.Redis.from_url(url)
    bodies = [body(number) for number in range(MESSAGES)]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        publish(spark, address, bodies, folder / "bodies.parquet")
        sizes = [2 * PER_TRIGGER] * WARM_ROUNDS + [MESSAGES] * ROUNDS
        rates = [
            (
                redis.read(spark, url, "bench", queue, bodies[:size], folder / f"redis-{number}", 1)[0],
                read(spark, address, folder / f"kafka-{number}"),
            )
            for number, size in enumerate(sizes)
        ]
        spark.stop()
    ours, theirs = zip(*rates[WARM_ROUNDS:], strict=True)
    return median(ours), median(theirs)


def publish(spark: Any, address: str, bodies: list[bytes], file: Path) -> None:
    """The bodies into the topic, as many in each partition."""
    partitions = pa.array((number % PARTITIONS for number in range(len(bodies))), pa.int32())
    pq.write_table(pa.table({"value": pa.array(bodies, pa.binary()), "partition": partitions}), file)
    options = {"kafka.bootstrap.servers": address, "topic": TOPIC}
    spark.read.parquet(str(file)).write.format("kafka").options(**options).save()


def read(spark: Any, address: str, checkpoint: Path) -> float:
    """Messages a second of the batches after the first."""
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": PER_TRIGGER,
        # At the end of a log, a fetch waits for half a second: that would be most of what we measure.
        "kafka.fetch.max.wait.ms": 20,
    }
    query = (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .select(from_json(col("value").cast("string"), ENVELOPE).alias("envelope"))
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return steady_rate(query.recentProgress)
