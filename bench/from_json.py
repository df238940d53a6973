"""Decode in Spark, on one core, against Spark's own `from_json`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from babelqueue_spark import functions as bq
from babelqueue_spark.connector.rows.reading import arrow_fields
from babelqueue_spark.envelope import decode
from bench.codec import BATCH, body, in_batches, small
from bench.table import Measured, Row, in_turns, row

ROUNDS = 3
DATA = "order_id BIGINT, amount DOUBLE, customer STRING, note STRING, items ARRAY<STRUCT<sku STRING, n INT>>"
META = "meta STRUCT<id STRING, queue STRING, lang STRING, schema_version INT, created_at BIGINT>"
ENVELOPE = f"job STRING, trace_id STRING, data STRING, {META}, attempts INT"

Make = Callable[[int], bytes]
SIZES: dict[str, tuple[int, Make, str]] = {
    "240-byte": (150_000, small, "id BIGINT"),
    "420-byte": (150_000, body, DATA),
    "4-kB": (15_000, partial(body, note=3600), DATA),
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
    from pyspark.sql.types import DataType, StructField, StructType

    typed = f"job STRING, trace_id STRING, data STRUCT<{data}>, {META}, attempts INT"
    (field,) = arrow_fields(StructType([StructField("data", DataType.fromDDL(data))]))
    bodies = pa.array([make(number) for number in range(count)], pa.binary())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bodies.parquet"
        pq.write_table(pa.table({"value": bodies}), file)
        frame = spark.read.parquet(str(file))
        text = col("value").cast("string")
        frames = {
            "scan": frame.select("value"),
            "from_json": frame.select(from_json(text, ENVELOPE)),
            "from_json, typed": frame.select(from_json(text, typed)),
            "decode": frame.select(bq.decode("value")),
            "decode, typed": frame.select(bq.decode("value", data)),
        }
        for work in frames.values():
            seconds(work)
        alone = {
            "alone": in_batches(decode, bodies),
            "alone, typed": in_batches(partial(decode, data_type=field.type), bodies),
        }
        took = in_turns(
            {name: partial(seconds, work) for name, work in frames.items()}
            | {name: partial(elapsed, work) for name, work in alone.items()},
            ROUNDS,
        )
    scan = took.pop("scan")
    rates = {
        name: Measured([count / (spent - (0 if name in alone else scan)) for spent in each.samples])
        for name, each in took.items()
    }
    untyped, of_types = ("from_json, local[1], less the scan", "from_json typed, local[1], less the scan")
    return [
        row(f"decode, {size}, one core", rates["alone"], untyped, rates["from_json"], 4),
        row(f"decode typed, {size}, one core", rates["alone, typed"], of_types, rates["from_json, typed"], 3),
        row(f"bq.decode in Spark, {size}, local[1]", rates["decode"], untyped, rates["from_json"], None),
        row(
            f"bq.decode typed in Spark, {size}, local[1]",
            rates["decode, typed"],
            of_types,
            rates["from_json, typed"],
            None,
        ),
    ]


def elapsed(run: Callable[[], Any]) -> float:
    """Seconds that something takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def seconds(frame: Any) -> float:
    """What it takes to compute all of a frame."""
    return elapsed(frame.write.format("noop").mode("overwrite").save)


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
