"""Over Spark Connect, the client observes the queries of its session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metrics.scrapes import Scrape
from tests.programs import CONNECT_ON_A_FREE_PORT, run
from tests.streams import envelope, publish

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from babelqueue_spark.metrics import observe

url, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
queue = {"url": url, "queue": "orders"}
with observe(spark, f"{folder}/orders.prom", queues=[queue]):
    frame = spark.readStream.format("babelqueue").options(**queue, journalLocation=f"{folder}/journal").load()
    query = (
        frame.select("job", "data").writeStream.format("babelqueue").options(url=url, queue="copies")
        .queryName("copies").option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    )
    query.awaitTermination()
spark.stop()
"""


@pytest.mark.spark
def test_a_client_observes_its_queries(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", [envelope(number) for number in range(7)])
    run(PROGRAM, url, str(tmp_path), **CONNECT_ON_A_FREE_PORT)
    found = Scrape((tmp_path / "orders.prom").read_text())
    assert found.value("babelqueue_messages_total", query="copies") == 7
    assert found.value("babelqueue_rows_written_total", query="copies") == 7
    assert found.value("babelqueue_query_active", query="copies") == 0
    assert found.value("babelqueue_queue_messages", broker="sql", queue="orders") == 0
