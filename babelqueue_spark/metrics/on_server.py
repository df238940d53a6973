"""Metrics of a worker that runs in another process than its program: over Spark Connect, the server's."""

from __future__ import annotations

import logging
from http.client import HTTPException
from typing import Any

from prometheus_client import CollectorRegistry

from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.metrics.exposing import Exposure, exposed
from babelqueue_spark.metrics.recording import Recorder
from babelqueue_spark.metrics.store import Metrics
from babelqueue_spark.worker.counts import Counts

logger = logging.getLogger(__name__)


class WorkerMetrics:
    """The `on_batch` of a worker over Spark Connect: gives its counts to Prometheus where the worker runs.

        worker = Worker(..., on_batch=WorkerMetrics("http://gateway:9091"))

    In a classic session `observe` does it.

    Args:
        to: as of `observe`, reached by the server's Python; opened there with the first batch.
        job: what a push gateway calls these metrics.
    """

    def __init__(self, to: str, job: str = "babelqueue-spark-worker") -> None:
        self._to = to
        self._job = job
        self._opened: tuple[Recorder, Exposure] | None = None

    def __call__(self, batch: int, counts: Counts) -> None:
        """Count a batch, and write; what fails is logged, and disturbs no batch."""
        try:
            recorder, exposure = self._opened = self._opened or self._open()
            recorder.worked(counts)
            exposure.write()
        except (BabelQueueError, OSError, HTTPException) as error:
            logger.warning("metrics of batch %d were not written: %s", batch, error)

    def _open(self) -> tuple[Recorder, Exposure]:
        registry = CollectorRegistry()
        return Recorder(Metrics(registry)), exposed(self._to, self._job, registry)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}
