"""Decode in Spark, on one core, against Spark's own `from_json`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from babelqueue_spark import functions as bq
from babelqueue_spark.envelope import decode
from bench.codec import BATCH, body, in_batches, small
from bench.table import Row, rate, row

ROUNDS = 3
DATA = "order_id BIGINT, amount DOUBLE, customer STRING, note STRING, items ARRAY<STRUCT<sku STRING, n INT>>"
META = "meta STRUCT<id STRING, queue STRING, lang STRING, schema_version INT, created_at BIGINT>"
ENVELOPE = f"job STRING, trace_id STRING, data STRING, {META}, attempts INT"

Make = Callable[[int], bytes]
SIZES: dict[str, tuple[int, Make, str]] = {
    "240-byte": (300_000, small, "id BIGINT"),
    "420-byte": (300_000, body, DATA),
    "4-kB": (30_000, partial(body, note=3600), DATA),
}


def rows() -> list[Row]:
    """Columns and typed data, bodies of each size."""
    spark = session()
    found = [
        each
        for size, (count, make, data) in SIZES.items()
        for each in of_size(spark, size, count, make, data)
    ]
    spark.stop()
    return found


def of_size(spark: Any, size: str, count: int, make: Make, data: str) -> list[Row]:
    """Bodies of one size, their payload with these fields."""
    from pyspark.sql.functions import col, from_json

    typed = f"job STRING, trace_id STRING, data STRUCT<{data}>, {META}, attempts INT"
    bodies = pa.array([make(number) for number in range(count)], pa.binary())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bodies.parquet"
        pq.write_table(pa.table({"value": bodies}), file)
        frame = spark.read.parquet(str(file))
        text = col("value").cast("string")
        works = {
            "scan": frame.select("value"),
            "from_json": frame.select(from_json(text, ENVELOPE)),
            "from_json, typed": frame.select(from_json(text, typed)),
            "decode": frame.select(bq.decode("value")),
            "decode, typed": frame.select(bq.decode("value", data)),
        }
        for work in works.values():
            seconds(work)
        took = {name: median(seconds(work) for _ in range(ROUNDS)) for name, work in works.items()}
    rates = {name: count / (spent - took["scan"]) for name, spent in took.items() if name != "scan"}
    alone = rate(count, in_batches(decode, bodies))
    return [
        row(f"decode, {size}, one core", alone, "from_json, local[1], less the scan", rates["from_json"], 4),
        row(f"bq.decode in Spark, {size}, local[1]", rates["decode"], "from_json", rates["from_json"], None),
        row(
            f"bq.decode typed, {size}, local[1]",
            rates["decode, typed"],
            "from_json typed",
            rates["from_json, typed"],
            None,
        ),
    ]


def seconds(frame: Any) -> float:
    """What it takes to compute all of a frame."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def session() -> Any:
    """Spark on one core."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
