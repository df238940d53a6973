"""A query without a JVM: plans batches itself, and reads their partitions in processes that may be killed.

Run as a process of its own: `workers.py PARTITIONS READINGS`, with one reading; `tests.crash.arrivals` says what that
is. This process calls the stream reader as Spark's driver does. A process for each attempt, forked from one that has
imported everything, gets the pickled reader and a partition, as Spark's workers do. One that is killed is followed by
another. Each batch is read twice, so that each partition has a replay.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import sitecustomize
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from babelqueue_spark.bindings import binding_class
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.datasource import BabelQueueDataSource
from tests.crash import attempt
from tests.crash.arrivals import SECONDS, readings_in

ATTEMPTS = 4
"""As many as Spark makes at a task in the master `local[2,4]`."""
AT_ONCE = 4
"""Processes that read at the same time."""


def main(partitions: str, readings: str) -> None:
    [arrivals] = readings_in(readings)
    options = arrivals.options(partitions)
    broker = read_options(options).broker
    sitecustomize.await_all_of_pulsar()
    multiprocessing.set_forkserver_preload(["tests.crash.workers", binding_class(broker).__module__])
    reader = BabelQueueDataSource(options).streamReader(SCHEMA)
    end = reader.initialOffset()
    batch = 0
    moment, deadline = threading.Event(), time.monotonic() + SECONDS
    while not arrivals.complete() and time.monotonic() < deadline:
        start, end = end, reader.latestOffset(end, None)
        if start == end:
            moment.wait(0.05)
            continue
        parts = reader.partitions(start, end)
        arrivals.keep(batch, rows_of(reader, parts, arrivals.folder))
        arrivals.keep_attempt(batch, json.dumps(rows_of(reader, parts, arrivals.folder)))
        reader.commit(end)
        batch += 1
    reader.stop()


def rows_of(
    reader: DataSourceStreamReader, partitions: Sequence[InputPartition], folder: Path
) -> list[list[str]]:
    """The rows of all partitions; an attempt that was killed or failed is repeated, as Spark does."""
    results = {folder / f"{number}.rows": partition for number, partition in enumerate(partitions)}
    unread = dict(results)
    for _ in range(ATTEMPTS):
        unread = not_read(reader, unread)
        if not unread:
            return [row for result in results for row in json.loads(result.read_text())]
    raise AssertionError(f"{ATTEMPTS} attempts came to no end: {list(unread.values())}")


def not_read(
    reader: DataSourceStreamReader, partitions: Mapping[Path, InputPartition]
) -> dict[Path, InputPartition]:
    """Make one attempt at each partition, some at once; those whose attempts came to no good end."""
    context = multiprocessing.get_context("forkserver")
    every = list(partitions.items())
    left: dict[Path, InputPartition] = {}
    for first in range(0, len(every), AT_ONCE):
        attempts = [
            (result, partition, context.Process(target=attempt.read, args=(reader, partition, result)))
            for result, partition in every[first : first + AT_ONCE]
        ]
        for _, _, process in attempts:
            process.start()
        for result, partition, process in attempts:
            process.join()
            if process.exitcode != 0:
                left[result] = partition
    return left


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
