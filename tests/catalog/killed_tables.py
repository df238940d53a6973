"""A program that writes the tables of a catalog, and is killed at a point."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.catalog.targets import Files, Tables
from tests.catalog.registries import ORDER, ORDERS
from tests.streams import stream

POINTS = ["before the first table", "between two tables", "after the last table"]
WRITES_BEFORE = dict(zip(POINTS, range(3), strict=True))


def main(point: str, url: str, queue: str, folder: str, target: str, form: str, warehouse: str) -> None:
    """Write what is in the queue; the process and its JVM die at the point."""
    spark = _session(form, warehouse)
    _die_at(point, spark, Files if form == "parquet" else Tables)
    messages = stream(spark, url, queue, Path(folder))
    query = Catalog({ORDERS: ORDER}).tables(
        messages, target, format=form, checkpoint=f"{folder}/checkpoint", availableNow=True
    )
    query.awaitTermination()


def _session(form: str, warehouse: str) -> Any:
    if form == "parquet":
        return SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    from tests.lakehouse import page, tables

    spark = page.session(Path(warehouse))
    tables.create_namespaces(spark, Path(warehouse))
    return spark


def _die_at(point: str, spark: Any, target: Any) -> None:
    jvm: Any = spark.sparkContext._gateway
    done = [0]
    write = target.write

    def die() -> None:
        os.kill(jvm.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(self: Any, messages: Any, name: str, part: str) -> None:
        if done[0] == WRITES_BEFORE[point]:
            die()
        write(self, messages, name, part)
        done[0] += 1
        if done[0] == WRITES_BEFORE[point] == 2:
            die()

    target.write = counted


if __name__ == "__main__":
    main(*sys.argv[1:])
