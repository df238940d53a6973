"""Hear of the batches of a session's queries, in this process and over Spark Connect alike."""

import time
from functools import cached_property
from threading import Condition
from typing import Any

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from babelqueue_spark.metrics.progress import Batch, batch_of


class QueryObserver:
    """Hears of queries that read through the connector."""

    def batch(self, batch: Batch, before: Batch | None) -> None:
        """Take the progress of a batch that has ended; `before` is the one before it in this run."""

    def idle(self, last: Batch) -> None:
        """Note that a query found nothing to read since its last batch."""

    def ended(self, last: Batch, *, failed: bool) -> None:
        """Note that a query has ended."""


class Listener(StreamingQueryListener):
    """Tells observers of the queries of a session that read through the connector."""

    def __init__(self, *observers: QueryObserver) -> None:
        self._observers = observers
        self._running: dict[str, Batch | None] = {}  # run → its last batch
        self._ended = Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        with self._ended:
            self._running[str(event.runId)] = None

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.progressed(event.progress.json)

    def progressed(self, progress: str) -> None:
        batch = batch_of(progress)
        if batch is None:
            return
        with self._ended:
            before = self._running.get(batch.run)
            self._running[batch.run] = batch
        for observer in self._observers:
            observer.batch(batch, before)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        last = self._running.get(str(event.runId))
        if last is not None:
            for observer in self._observers:
                observer.idle(last)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        run = str(event.runId)
        last = self._running.get(run)
        if last is not None:
            for observer in self._observers:
                observer.ended(last, failed=event.exception is not None)
        with self._ended:
            self._running.pop(run, None)
            self._ended.notify_all()

    @cached_property
    def _jlistener(self) -> Any:  # of a classic session, where PySpark registers what this returns
        from pyspark import SparkContext  # which a client of Spark Connect has not

        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(_JsonReceiver(self))  # type: ignore[union-attr]

    def wait(self, active: set[str], patience: float) -> None:
        """Wait until all runs but the `active` ones are known to have ended, as events come late."""
        deadline = time.monotonic() + patience
        with self._ended:
            while self._running.keys() - active and (left := deadline - time.monotonic()) > 0:
                self._ended.wait(left)


class _JsonReceiver(JStreamingQueryListener):
    """Takes events of the JVM for a listener; of a progress it reads the JSON alone.

    PySpark's own reads each field of a progress with a call to the JVM: 17 ms of a core for each batch on the
    machine of the bench. The JSON takes 1 ms.
    """

    pylistener: Listener

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.pylistener.progressed(event.progress().json())
