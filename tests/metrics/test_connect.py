"""Over Spark Connect, the client observes the queries of its session, and the server its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metrics.scrapes import Scrape
from tests.programs import CONNECT_ON_A_FREE_PORT, run
from tests.streams import envelope, publish

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from babelqueue_spark.metrics import WorkerMetrics, observe
from babelqueue_spark.worker import Worker

url, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
queue = {"url": url, "queue": "orders"}
checkpoint = f"{folder}/worker-checkpoint"
on_batch = WorkerMetrics(f"{folder}/worker.prom")
worker = Worker({"url": url}, state=f"{folder}/worker", checkpoint=checkpoint, on_batch=on_batch)
worker.handler("urn:babel:orders:*")(lambda _: None)

def read(name):
    return spark.readStream.format("babelqueue").options(url=url, queue=name, journalLocation=f"{folder}/{name}").load()

with observe(spark, f"{folder}/orders.prom", queues=[queue]):
    copies = read("orders").select("job", "data").writeStream.format("babelqueue").options(url=url, queue="copies")
    copies.queryName("copies").option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    worked = read("copies").writeStream.foreachBatch(worker).queryName("worked")
    worked.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.mark.spark
def test_a_client_observes_its_queries_and_the_server_its_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", [envelope(number) for number in range(7)])
    run(PROGRAM, url, str(tmp_path), **CONNECT_ON_A_FREE_PORT)
    found = Scrape((tmp_path / "orders.prom").read_text())
    assert found.value("babelqueue_messages_total", query="copies") == 7
    assert found.value("babelqueue_rows_written_total", query="copies") == 7
    assert found.value("babelqueue_query_active", query="copies") == 0
    assert found.value("babelqueue_queue_messages", broker="sql", queue="orders") == 0
    assert found.value("babelqueue_messages_total", query="worked") == 7
    on_server = Scrape((tmp_path / "worker.prom").read_text())
    labels = {"urn": "urn:babel:orders:created", "outcome": "acked", "reason": ""}
    assert on_server.value("babelqueue_worker_messages_total", **labels) == 7
