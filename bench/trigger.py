"""What a trigger costs: Redis through the journal, against Spark's Kafka source and its `rate` source.

Milliseconds of a trigger, as the query's progress says (`durationMs`): the ratio is that of ours to the
peer's, and lower is better. An empty trigger finds nothing, and the next follows at once: most of ours do not
poll the broker.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any

import redis as client
from confluent_kafka import Producer

from bench.redis import body, session
from bench.table import Row, row
from tests.servers import RedisServer
from tests.servers.jars import jars
from tests.servers.kafka import SPARK_KAFKA, KafkaServer

MESSAGES = 1_000
FEW = 1
EMPTY = 0
IDLE_SECONDS = 5.0
WARM, BATCHES = 10, 15
TOPIC = "bench"
LONGEST = 120.0
"""Seconds that one batch may take."""


def rows() -> list[Row]:
    """Milliseconds of a trigger with no message, with one, and with a thousand."""
    source = jars(SPARK_KAFKA)
    own_process = ProcessPoolExecutor(1, get_context("spawn"))  # a JVM takes jars only when it starts
    with RedisServer() as queue, KafkaServer(1) as log, own_process as process:
        ours, kafka, rate = process.submit(measure, queue.url, log.address, source).result()
    return [
        row(f"trigger, {count:,} messages, Redis, ms", ours[count], peer, theirs[count], None)
        for count in (EMPTY, FEW, MESSAGES)
        for peer, theirs in (("Spark's Kafka source, ms", kafka), ("Spark's rate source, ms", rate))
        if count in theirs
    ]


Times = dict[int, float]
"""Messages of a batch → milliseconds of its trigger, the median."""


def measure(url: str, address: str, source: Path) -> tuple[Times, Times, Times]:
    """Our source, Spark's Kafka source, and its rate source, in one Spark."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, source.glob('*.jar')))} pyspark-shell"
    spark = session()
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    redis = client.Redis.from_url(url)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50})
    bodies = [body(number) for number in range(MESSAGES)]

    def push(count: int) -> None:
        redis.rpush("bench", *bodies[:count])

    def produce(count: int) -> None:
        for each in bodies[:count]:
            producer.produce(TOPIC, each)
        producer.flush()

    with tempfile.TemporaryDirectory() as folder:
        queue = {"url": url, "queue": "bench", "journalLocation": f"{folder}/journal", "numPartitions": "1"}
        topic = {
            "kafka.bootstrap.servers": address,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "kafka.fetch.max.wait.ms": "20",
        }
        ours = batches(spark.readStream.format("babelqueue").options(**queue).load(), f"{folder}/1", push)
        kafka = batches(spark.readStream.format("kafka").options(**topic).load(), f"{folder}/2", produce)
        rated = {count: rate_batches(spark, f"{folder}/rate-{count}", count) for count in (FEW, MESSAGES)}
    spark.stop()
    return ours, kafka, rated


def batches(frame: Any, checkpoint: str, send: Callable[[int], None]) -> Times:
    """A query that is given its batches one after the other, each when it has nothing more to do."""
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    found: Times = {}
    for count in (FEW, MESSAGES):
        took = []
        for _ in range(WARM + BATCHES):
            before = newest(query)
            send(count)
            took.append(duration(query, before, count))
        found[count] = median(took[WARM:])
    time.sleep(IDLE_SECONDS)
    empty = [each["durationMs"]["triggerExecution"] for each in query.recentProgress[-50:]]
    found[EMPTY] = mean(empty)
    query.stop()
    return found


def duration(query: Any, before: int, count: int) -> float:
    """Milliseconds of the trigger after batch `before` that reads so many messages."""
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        for progress in reversed(query.recentProgress):
            if progress["numInputRows"] == count and progress["batchId"] > before:
                return float(progress["durationMs"]["triggerExecution"])
        time.sleep(0.02)
    raise TimeoutError(f"no batch within {LONGEST:g} s: {query.exception()}")


def newest(query: Any) -> int:
    """The last batch with rows; -1 before the first."""
    return max((each["batchId"] for each in query.recentProgress if each["numInputRows"]), default=-1)


def rate_batches(spark: Any, checkpoint: str, count: int) -> float:
    """Milliseconds of a trigger of `rate-micro-batch`, which makes its rows by itself."""
    frame = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=count, numPartitions=1).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    deadline = time.monotonic() + LONGEST
    while newest(query) < WARM + BATCHES and time.monotonic() < deadline:
        time.sleep(0.05)
    took = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
    query.stop()
    return float(median(took[WARM:]))
