"""Kafka by other doors: Spark's own source and sink beside ours, and ours over Spark Connect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.testing import joined
from tests.bindings.kafka_peers import send
from tests.programs import CONNECT_ON_A_FREE_PORT, run
from tests.servers.jars import jars
from tests.servers.kafka import SPARK_KAFKA, KafkaServer
from tests.streams import envelope, publish

pytestmark = pytest.mark.spark

BESIDE_SPARKS_OWN = """
import sys
from pyspark.sql import SparkSession
from babelqueue_spark.spark_kafka import from_kafka, to_kafka
url, address, topic, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
options = {"kafka.bootstrap.servers": address, "subscribe": topic, "includeHeaders": "true", "startingOffsets": "earliest"}
theirs = from_kafka(spark.read.format("kafka").options(**options).load())
theirs.write.json(folder + "/theirs")
spark.read.format("babelqueue").options(url=url, queue=topic).load().write.json(folder + "/ours")
accepted = theirs.where("error IS NULL").select("job", "data", "trace_id", "delivery.key", "headers")
to_kafka(accepted, topic + "-copies").write.format("kafka").option("kafka.bootstrap.servers", address).save()
spark.stop()
"""

OVER_CONNECT = """
import sys
from pyspark.sql import SparkSession
url, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
reader = spark.readStream.format("babelqueue").options(url=url, queue=topic)
query = (reader.load().selectExpr("job", "data", "trace_id").writeStream.format("babelqueue")
    .options(url=url, queue=topic + "-copies", checkpointLocation=folder + "/checkpoint")
    .trigger(availableNow=True).start())
query.awaitTermination(90)
assert query.exception() is None, query.exception()
print(spark.read.format("babelqueue").options(url=url, queue=topic + "-copies").load().count())
spark.stop()
"""


def rows(folder: Path) -> list[Any]:
    lines = (line for path in folder.glob("*.json") for line in path.read_text().splitlines())
    return sorted((json.loads(line) for line in lines), key=lambda row: int(row["delivery"]["id"][2:]))


def test_sparks_own_source_and_sink_give_and_take_the_same(
    kafka_server: KafkaServer, queue: str, tmp_path: Path
) -> None:
    bodies = [envelope(number, queue, attempts=number) for number in range(3)]
    publish(kafka_server.url, queue, bodies)
    send(
        kafka_server,
        queue,
        [b"no envelope", None],
        headers=[("bq-attempts", b"7"), ("x", b"first"), ("x", b"y")],
    )
    own = ",".join(map(str, jars(SPARK_KAFKA).glob("*.jar")))
    arguments = [kafka_server.url, kafka_server.address, queue, str(tmp_path)]
    run(BESIDE_SPARKS_OWN, *arguments, PYSPARK_SUBMIT_ARGS=f"--jars {own} pyspark-shell")
    theirs, ours = rows(tmp_path / "theirs"), rows(tmp_path / "ours")
    assert len(ours) == 5
    assert theirs == ours
    with read_options({"url": kafka_server.url, "queue": queue}).binding() as binding:
        sent = joined(binding.browse(queue)).slice(0, 3)
        copies = joined(binding.browse(f"{queue}-copies"))
    parsed = [
        [
            (json.loads(body)["data"], json.loads(body)["trace_id"])
            for body in batch.column("body").to_pylist()
        ]
        for batch in (sent, copies)
    ]
    assert sorted(map(str, parsed[0])) == sorted(map(str, parsed[1]))
    names = [{name for name, _ in headers} for headers in copies.column("headers").to_pylist()]
    assert names == [{name for name, _ in headers} for headers in sent.column("headers").to_pylist()]


def test_ours_needs_no_jar_over_connect(kafka_server: KafkaServer, queue: str, tmp_path: Path) -> None:
    publish(kafka_server.url, queue, [envelope(number, queue) for number in range(20)])
    said = run(OVER_CONNECT, kafka_server.url, queue, str(tmp_path), **CONNECT_ON_A_FREE_PORT)
    assert said.split()[-1] == "20"
