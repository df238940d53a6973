"""Turn batches of queries and of workers into metrics."""

import time

from babelqueue_spark.metrics import families
from babelqueue_spark.metrics.listener import QueryObserver
from babelqueue_spark.metrics.progress import TOTAL_PHASE, Batch
from babelqueue_spark.metrics.store import Metrics
from babelqueue_spark.worker.counts import PUBLISHED, Counts

_JOURNAL_COUNTERS = {
    "segments": families.SEGMENTS,
    "bytes": families.SEGMENT_BYTES,
    "redelivered": families.REDELIVERIES,
    "unacknowledged": families.UNACKNOWLEDGED,
}
_JOURNAL_GAUGES = {"held_segments": families.HELD_SEGMENTS, "held_bytes": families.HELD_BYTES}


class Recorder(QueryObserver):
    """Records what it is told of queries and workers."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def batch(self, batch: Batch, before: Batch | None) -> None:
        metrics, query = self._metrics, batch.query
        metrics.add(families.MESSAGES, batch.rows, query)
        if batch.written is not None:
            metrics.add(families.ROWS_WRITTEN, batch.written, query)
        for queue, waiting in batch.backlog.items():
            metrics.set(families.BACKLOG, waiting, query, queue)
        for phase, seconds in batch.seconds.items():
            if phase == TOTAL_PHASE:
                metrics.observe(families.BATCH_SECONDS, seconds, query)
            else:
                metrics.add(families.PHASE_SECONDS, seconds, query, phase)
        for name, count in batch.journal.items():
            if name in _JOURNAL_GAUGES:
                metrics.set(_JOURNAL_GAUGES[name], count, query)
            elif name in _JOURNAL_COUNTERS:
                seen = before.journal.get(name, 0) if before is not None else 0
                metrics.add(_JOURNAL_COUNTERS[name], count - seen, query)
        metrics.set(families.LAST_BATCH, time.time(), query)
        metrics.set(families.ACTIVE, 1, query)

    def idle(self, last: Batch) -> None:
        for queue in last.backlog:
            self._metrics.set(families.BACKLOG, 0, last.query, queue)

    def ended(self, last: Batch, *, failed: bool) -> None:
        self._metrics.set(families.ACTIVE, 0, last.query)
        self._metrics.add(families.FAILURES, int(failed), last.query)

    def worked(self, counts: Counts) -> None:
        for (urn, outcome, reason), messages in counts.by.items():
            if outcome == PUBLISHED:
                self._metrics.add(families.PUBLISHED, messages, urn)
            else:
                self._metrics.add(families.WORKED, messages, urn, outcome, reason)
