"""One log line for each batch, on the driver."""

import json
import logging
from typing import Any

from pyspark.sql import SparkSession

from babelqueue_spark.metrics.listener import Listener, QueryObserver
from babelqueue_spark.metrics.progress import TOTAL_PHASE, Batch

logger = logging.getLogger("babelqueue_spark.batches")


class BatchLog(QueryObserver):
    """Writes a line at INFO for each batch: `batch`, and its facts as JSON."""

    def batch(self, batch: Batch, before: Batch | None) -> None:
        if logger.isEnabledFor(logging.INFO):
            logger.info("batch %s", json.dumps(facts(batch, before), separators=(",", ":")))


def log_batches(spark: SparkSession) -> Listener:
    """Log a line at INFO for each batch of this session's queries, by the logger `babelqueue_spark.batches`.

    It needs no further package. `observe` does it as well. Returns what `spark.streams.removeListener` takes.
    """
    listener = Listener(BatchLog())
    spark.streams.addListener(listener)
    return listener


def facts(batch: Batch, before: Batch | None) -> dict[str, Any]:
    """Return a line on a batch; `before` tells of the batch before it, which the journal has counted."""
    queues = {
        queue: {"backlog": batch.backlog.get(queue), "planned": batch.planned.get(queue)}
        for queue in sorted({*batch.backlog, *batch.planned})
    }
    told: dict[str, Any] = {
        "query": batch.query,
        "batch": batch.number,
        "queues": queues,
        "fresh": batch.rows,
        "seconds": batch.seconds.get(TOTAL_PHASE),
        "phases": {phase: took for phase, took in batch.seconds.items() if phase != TOTAL_PHASE},
    }
    if batch.written is not None:
        told["written"] = batch.written
    if before is not None and batch.journal:
        told["before"] = _journalled(before, batch)
    return told


def _journalled(before: Batch, batch: Batch) -> dict[str, int]:
    grown = {name: count - before.journal.get(name, 0) for name, count in batch.journal.items()}
    counted = {name: grown[name] for name in ("redelivered", "unacknowledged", "segments", "bytes")}
    claimed = before.rows + grown["redelivered"]
    return {"batch": before.number, "claimed": claimed, "fresh": before.rows, **counted}
