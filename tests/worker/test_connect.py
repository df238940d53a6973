"""A worker over Spark Connect: from 4.3 on, its batches have a session cloned from the one that started the query."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.testing import joined
from tests.programs import CONNECT_ON_A_FREE_PORT, run
from tests.streams import envelope, publish

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from babelqueue_spark.worker import Outgoing, Worker
url, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
names = "SELECT id AS order_id, concat('order ', id) AS name FROM range(100)"
spark.sql(names).createOrReplaceTempView("names")
spark.conf.set("spark.sql.shuffle.partitions", "1")
checkpoint = folder + "/checkpoint"
worker = Worker({"url": url}, state=folder + "/worker", checkpoint=checkpoint)

@worker.handler("urn:babel:orders:created")
def handle(message):
    return Outgoing(job="urn:babel:orders:handled", data=message.data, queue="handled")

@worker.dataframe_handler("urn:babel:orders:named", data_schema="order_id BIGINT")
def named(frame, number):
    session = frame.sparkSession
    assert session.conf.get("spark.sql.shuffle.partitions") == "1"
    joined = frame.select("data.order_id").join(session.table("names"), "order_id")
    columns = ["'urn:babel:orders:found' AS job", "to_json(struct(order_id, name)) AS data", "'found' AS queue"]
    return joined.selectExpr(*columns)

rows = spark.readStream.format("babelqueue").options(url=url, queue="orders", journalLocation=folder + "/journal")
for _ in range(2):
    query = (rows.load().writeStream.foreachBatch(worker).option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start())
    query.awaitTermination(90)
    assert query.exception() is None, query.exception()
spark.stop()
"""


def test_handlers_use_the_session_of_their_batch(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", (envelope(number, "orders") for number in range(3)))
    publish(url, "orders", (envelope(number, "orders", job="urn:babel:orders:named") for number in (7, 9)))
    run(PROGRAM, url, str(tmp_path), **CONNECT_ON_A_FREE_PORT)
    assert [each["order_id"] for each in published(url, "handled")] == [0, 1, 2]
    assert [each["name"] for each in published(url, "found")] == ["order 7", "order 9"]
    assert published(url, "orders") == []


def published(url: str, queue: str) -> list[dict[str, object]]:
    with read_options({"url": url, "queue": queue}).binding() as binding:
        bodies = joined(binding.browse(queue)).column("body").to_pylist()
    return sorted((json.loads(body)["data"] for body in bodies), key=lambda data: data["order_id"])
