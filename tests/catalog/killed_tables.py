"""A program that writes the tables of a catalog, and is killed at a point."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.catalog.targets import Files
from tests.catalog.registries import ORDER, ORDERS
from tests.streams import stream

WRITES_BEFORE = {"before the first table": 0, "between two tables": 1, "after the last table": 2}


def main(point: str, url: str, queue: str, folder: str) -> None:
    """Write what is in the queue; the process and its JVM die at the point."""
    spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    jvm: Any = spark.sparkContext._gateway
    done = [0]
    write = Files.write

    def die() -> None:
        os.kill(jvm.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(self: Files, messages: Any, name: str, part: str) -> None:
        if done[0] == WRITES_BEFORE[point]:
            die()
        write(self, messages, name, part)
        done[0] += 1
        if done[0] == WRITES_BEFORE[point] == 2:
            die()

    Files.write = counted  # type: ignore[method-assign]
    messages = stream(spark, url, queue, Path(folder))
    Catalog({ORDERS: ORDER}).tables(messages, f"{folder}/lake", availableNow=True).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
