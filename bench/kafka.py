"""Kafka: what a queue costs to read beside a log, and the ways to read and write that log."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import redis as client
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.kafka import KafkaBinding
from babelqueue_spark.bindings.kafka.messages import Record, records
from babelqueue_spark.bindings.kafka.tiers import Tiers
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.spark_kafka import from_kafka
from bench.redis import PER_TRIGGER, body, push, session
from bench.table import Measured, Row, in_turns, new_queue, progress_of, rate, row, steady_rate
from tests.servers import RedisServer
from tests.servers.jars import jars
from tests.servers.kafka import SPARK_KAFKA, KafkaServer
from tests.streams import outgoing

#: What the JVM runs is not all compiled before.
WARM_ROUNDS = 2
ROUNDS = 3
PARTITIONS = 4
MESSAGES = 300_000
PUBLISHED = 100_000
TOPIC = "bench"
ENVELOPE = """
job STRING, trace_id STRING, data STRING, attempts INT,
meta STRUCT<id STRING, queue STRING, lang STRING, schema_version INT, created_at BIGINT>
"""
ENVELOPE_COLUMNS = ("job", "trace_id", "data", "meta", "attempts")


def rows() -> list[Row]:
    """The Kafka row of the design, and Kafka itself: ours against Spark's own source and bare clients."""
    source = jars(SPARK_KAFKA)
    # A JVM takes jars only when it starts, and another module may have started this process's one.
    own_process = ProcessPoolExecutor(1, get_context("spawn"))
    with RedisServer() as queue, KafkaServer(PARTITIONS) as log, own_process as process:
        found = process.submit(compare, queue.url, log.address, source).result()
        loop = rate(MESSAGES, lambda: consume(log.address), repeats=ROUNDS)
        bodies = [body(number) for number in range(PUBLISHED)]
        out = rate(PUBLISHED, lambda: write(log, bodies), repeats=ROUNDS)
        made = list(records("bare", outgoing(bodies), Tiers()))
        bare = rate(PUBLISHED, lambda: produce(log.address, made), repeats=ROUNDS)
    peer, consumer = "Spark's Kafka source and from_json", "bare consume loop"
    theirs = (f"{peer}, to nothing", found["json"])
    return [
        row("Redis to nothing, journal on", found["redis"], *theirs, 1.0),
        row(
            "Redis to Parquet, journal on",
            found["redis to Parquet"],
            f"{peer}, to Parquet",
            found["json to Parquet"],
            1.0,
        ),
        row("Kafka to DataFrame without a jar", found["without a jar"], *theirs, None),
        row("Kafka to DataFrame without a jar", found["without a jar"], consumer, loop, None),
        row("Spark's Kafka source and from_kafka", found["from_kafka"], *theirs, None),
        row("Kafka publish", out, "bare produce, headers made before", bare, None),
    ]


def consume(address: str) -> None:
    """Read the topic to its end in one process, and look at nothing."""
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "auto.offset.reset": "earliest"},
    )
    reader.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    left = MESSAGES
    while left > 0:
        left -= len([message.value() for message in reader.consume(10_000, 1.0)])
    reader.close()


def produce(address: str, made: list[Record]) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number, each in enumerate(made):
        if number % 10_000 == 0:
            producer.flush()
        producer.produce(each.topic, each.body, timestamp=each.timestamp, headers=each.headers)
    producer.flush()


def write(log: KafkaServer, bodies: list[bytes]) -> None:
    with KafkaBinding(BindingConfig(url=log.url)) as binding:
        for first in range(0, len(bodies), binding.capabilities.publish_batch):
            part = bodies[first : first + binding.capabilities.publish_batch]
            binding.publish("ours", outgoing(part))


def compare(url: str, address: str, source: Path) -> dict[str, Measured]:
    """Messages a second out of Redis, and out of Kafka in three ways, in turns: noise hits all.

    Each gives the same columns of the envelope.
    """
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, source.glob('*.jar')))} pyspark-shell"
    spark = session()
    queue = client.Redis.from_url(url)
    bodies = [body(number) for number in range(MESSAGES)]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        publish(spark, address, bodies, folder / "bodies.parquet")

        def out_of_redis(sink: str) -> float:
            name = new_queue()
            push(queue, name, bodies)
            return run(of_redis(spark, url, name, folder / f"{name}-journal"), folder / name, sink)

        def out_of_kafka(frame: Any, sink: str = "noop") -> float:
            return run(frame, folder / new_queue(), sink)

        works = {
            "redis": lambda: out_of_redis("noop"),
            "json": lambda: out_of_kafka(json_rows(from_spark(spark, address))),
            "redis to Parquet": lambda: out_of_redis("parquet"),
            "json to Parquet": lambda: out_of_kafka(json_rows(from_spark(spark, address)), "parquet"),
            "without a jar": lambda: out_of_kafka(without_a_jar(spark, address)),
            "from_kafka": lambda: out_of_kafka(from_kafka(from_spark(spark, address))),
        }
        in_turns(works, WARM_ROUNDS)
        found = in_turns(works, ROUNDS)
        spark.stop()
    return found


def publish(spark: Any, address: str, bodies: list[bytes], file: Path) -> None:
    """The bodies into the topic, as many in each partition."""
    partitions = pa.array((number % PARTITIONS for number in range(len(bodies))), pa.int32())
    pq.write_table(pa.table({"value": pa.array(bodies, pa.binary()), "partition": partitions}), file)
    options = {"kafka.bootstrap.servers": address, "topic": TOPIC}
    spark.read.parquet(str(file)).write.format("kafka").options(**options).save()


def from_spark(spark: Any, address: str) -> Any:
    """Rows of Spark's own source."""
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": PER_TRIGGER,
        "includeHeaders": "true",
        # At the end of a log, a fetch waits for half a second: that would be most of what we measure.
        "kafka.fetch.max.wait.ms": 20,
    }
    return spark.readStream.format("kafka").options(**options).load()


def json_rows(rows: Any) -> Any:
    return rows.select(from_json(col("value").cast("string"), ENVELOPE).alias("envelope")).select(
        "envelope.*"
    )


def without_a_jar(spark: Any, address: str) -> Any:
    options = {"url": f"kafka://{address}", "queue": TOPIC, "maxMessagesPerTrigger": PER_TRIGGER}
    return spark.readStream.format("babelqueue").options(**options).load()


def of_redis(spark: Any, url: str, queue: str, journal: Path) -> Any:
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "maxBytesPerTrigger": "1g"}
    columns = StructType([field for field in SCHEMA if field.name in ENVELOPE_COLUMNS])
    return (
        spark.readStream.format("babelqueue")
        .options(url=url, queue=queue, journalLocation=str(journal), **options)
        .schema(columns)
        .load()
    )


def run(frame: Any, folder: Path, sink: str) -> float:
    """Messages a second of the batches after the first."""
    return steady_rate(
        progress_of(frame.writeStream.format(sink).option("path", str(folder / "out")), folder)
    )
