"""Observe a session: its queries, the workers of this process, and queues."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPException
from threading import Event, Thread
from typing import Any, Self

from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.metrics.batch_log import BatchLog
from babelqueue_spark.metrics.exposure import Exposure, exposed
from babelqueue_spark.metrics.listener import Listener
from babelqueue_spark.metrics.recorder import Recorder
from babelqueue_spark.metrics.store import Metrics
from babelqueue_spark.metrics.watch import Watch, watches
from babelqueue_spark.worker.counts import Counts
from babelqueue_spark.worker.observers import observed

logger = logging.getLogger(__name__)

_LATE_EVENTS = 10.0
"""Seconds for which `close` waits for Spark to tell of the end of a query."""


class Observer:
    """What `observe` returns. A context manager; `close` ends it.

    Attributes:
        address: where the metrics are, such as `http://127.0.0.1:9464/metrics`; None = in the registry alone.
        registry: of prometheus_client, with all metrics.
    """

    def __init__(
        self,
        spark: SparkSession,
        exposure: Exposure | None,
        watched: Sequence[Watch],
        recorder: Recorder,
        every: float,
        registry: CollectorRegistry,
    ) -> None:
        self.address = exposure.address if exposure is not None else None
        self.registry = registry
        self._spark = spark
        self._exposure = exposure
        self._watched = watched
        self._every = every
        self._failing = False
        self._opened = ExitStack()
        self._opened.enter_context(observed(recorder.worked))
        self._listener = Listener(recorder, BatchLog())
        spark.streams.addListener(self._listener)
        self._closing = Event()
        self._thread = Thread(target=self._run, name="babelqueue metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take what Spark tells late of queries that have ended, write a last time, and stop; idempotent."""
        if self._closing.is_set():
            return
        try:
            self._listener.wait({str(query.runId) for query in self._spark.streams.active}, _LATE_EVENTS)
            self._spark.streams.removeListener(self._listener)
        finally:
            self._opened.close()
            self._closing.set()
            self._thread.join()
            if self._exposure is not None:
                self._exposure.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        self._tick()
        while not self._closing.wait(self._every):
            self._tick()
        self._tick()

    def _tick(self) -> None:
        for watch in self._watched:
            watch.poll()
        if self._exposure is None:
            return
        try:
            self._exposure.write()
            self._failing = False
        except Exception as error:  # noqa: BLE001 (a collector of the program's own may raise anything)
            if not self._failing:
                logger.warning("metrics do not reach %s for now: %s", self.address, error)
            self._failing = True


def observe(
    spark: SparkSession,
    to: str | None = "9464",
    *,
    queues: Iterable[Mapping[str, str]] = (),
    every: float = 15.0,
    job: str = "babelqueue-spark",
    registry: CollectorRegistry | None = None,
) -> Observer:
    """Give Prometheus the numbers of a session's queries, of the workers of this process, and of queues.

    Queries are those that read through the connector, also those that run already. A line for each of their
    batches is logged at INFO, too (`log_batches`). Over Spark Connect it observes queries and queues; workers
    run in the server's process (`WorkerMetrics`).

    Args:
        spark: the session.
        to: a port (`9464`: of the loopback interface; `0.0.0.0:9464`; `0`: any), the URL of a push gateway
            (`http://gateway:9091`), a file that ends with `.prom`, or a reference to one of them (`env:NAME`,
            `file:/path`); None = nothing but the registry.
        queues: options of reads or writes, with `url` and `queue`: those queues and their dead-letter queues
            are polled.
        every: seconds between two polls, and two writes to a push gateway or file.
        job: what a push gateway calls these metrics, beside the host's name.
        registry: takes the metrics; None = one of their own.

    Raises:
        OptionError: `to` or options of a queue are invalid, a port is taken, or a queue cannot be polled.
        MissingPackageError: the extra `metrics` is not installed.
    """
    taken = registry if registry is not None else CollectorRegistry()
    metrics = Metrics(taken)
    watched = list(watches(queues, metrics))
    exposure = None if to is None else exposed(to, job, taken)
    return Observer(spark, exposure, watched, Recorder(metrics), every, taken)


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
