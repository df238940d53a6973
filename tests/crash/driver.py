"""A user's program: a query for each of several readings, until all messages of all of them have arrived.

Run as a process of its own: `driver.py PARTITIONS READINGS`; `tests.crash.arrivals` says what READINGS is, and what
each query leaves in its folder.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import sitecustomize
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.crash.arrivals import SECONDS, Arrivals, readings_in
from tests.crash.program import session
from tests.streams import could_not_start, started_again


class Query:
    """A streaming query over the queues of one reading."""

    def __init__(self, spark: SparkSession, arrivals: Arrivals, partitions: str) -> None:
        self._spark = spark
        self._arrivals = arrivals
        self._partitions = partitions
        self._query = self._started()

    def keep_running(self) -> None:
        """Start the query again where Spark could not start it; raise what else has ended it."""
        if not self._query.isActive:
            self._query = started_again(self._query, self._started)

    def complete(self) -> bool:
        """Whether all messages have arrived."""
        return self._arrivals.complete()

    def stop(self) -> None:
        """Stop the query; one that Spark could not start has nothing left to read."""
        try:
            self._query.awaitTermination(1)
        except StreamingQueryException as error:
            if not could_not_start(error):
                raise
        self._query.stop()

    def _started(self) -> StreamingQuery:
        return (
            self._spark.readStream.format("babelqueue")
            .options(**self._arrivals.options(self._partitions))
            .load()
            .writeStream.foreachBatch(self._each)
            .option("checkpointLocation", str(self._arrivals.folder / "checkpoint"))
            .start()
        )

    def _each(self, frame: Any, number: int) -> None:
        rows = [[row.queue, bytes(row.body).decode()] for row in frame.select("queue", "body").collect()]
        self._arrivals.keep(number, rows)
        for queue in self._arrivals.queues:
            sitecustomize.reached("in foreachBatch", queue)


def main(partitions: str, readings: str) -> None:
    spark = session()
    queries = [Query(spark, arrivals, partitions) for arrivals in readings_in(readings)]
    moment, deadline = threading.Event(), time.monotonic() + SECONDS
    while not all(query.complete() for query in queries) and time.monotonic() < deadline:
        for query in queries:
            query.keep_running()
        moment.wait(0.05)
    for query in queries:
        query.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
