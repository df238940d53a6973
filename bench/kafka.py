"""Kafka: what a queue costs to read beside a log, by Spark's own Kafka source and `from_json`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import redis as client
from pyspark.sql.functions import col, from_json

from bench import redis
from bench.redis import PER_TRIGGER, body, session
from bench.table import Row, row, steady_rate
from tests.servers import RedisServer, StartError, await_ready, free_port

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
CACHE = Path(".cache/kafka").absolute()
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={home}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


def rows() -> list[Row]:
    """The Kafka row of the design."""
    source, server = jars("spark"), jars("broker")
    # A JVM takes jars only when it starts, and another module may have started this process's one.
    own_process = ProcessPoolExecutor(1, get_context("spawn"))
    with RedisServer() as queue, broker(server) as address, own_process as process:
        ours, theirs = process.submit(compare, queue.url, address, source).result()
    return [row("Redis to DataFrame, journal on", ours, "Spark's Kafka source and from_json", theirs, 0.7)]


def jars(profile: str) -> Path:
    """The folder with the jars of a profile of the pom; Maven fetches them once."""
    folder = CACHE / f"{crc32(POM.read_bytes()):08x}" / profile
    if folder.is_dir():
        return folder
    if not shutil.which("mvn"):
        raise SystemExit("bench kafka: Maven is missing, which fetches Kafka: run scripts/provision.sh maven")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    command = ["mvn", "-q", "-B", "-f", str(POM), "-P", profile, *goal]
    fetched = subprocess.run(command, capture_output=True, text=True)
    if fetched.returncode:
        reason = fetched.stdout.partition("[ERROR] ")[2].partition("\n")[0]
        raise SystemExit(f"bench kafka: Maven could not fetch Kafka: {reason}")
    return folder


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A Kafka broker in a directory of its own, and its address."""
    with tempfile.TemporaryDirectory(prefix="kafka-") as home:
        port, settings, log = free_port(), Path(home) / "server.properties", Path(home) / "log"
        settings.write_text(
            SETTINGS.format(port=port, controller=free_port(), home=home, partitions=PARTITIONS)
        )
        java = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{folder}/*"]
        layout = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
        with log.open("wb") as output:
            subprocess.run([*java, *layout], stdout=output, stderr=subprocess.STDOUT)
            process = subprocess.Popen(
                [*java, "kafka.Kafka", str(settings)], stdout=output, stderr=subprocess.STDOUT
            )
        try:
            await_ready(process, lambda: listens(port), log)
            yield f"127.0.0.1:{port}"
        except StartError as error:
            reason = (str(error).splitlines() or ["it took too long"])[-1]
            raise SystemExit(f"bench kafka: the broker did not start: {reason}") from None
        finally:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    """True when the port takes a connection; `OSError` until then."""
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


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
