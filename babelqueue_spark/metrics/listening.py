"""Hear of the batches of a session's queries, in this process and over Spark Connect alike."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from babelqueue_spark.metrics.progress import Batch, batch_of


@dataclass
class Query:
    """A run of a query.

    Attributes:
        name: the query's name; its id where it has none.
        last: its last batch; None before the first, and where it reads nothing through the connector.
    """

    name: str
    last: Batch | None = None


class QueryObserver(Protocol):
    """What is told of queries that read through the connector."""

    def batch(self, batch: Batch, before: Batch | None) -> None:
        """A batch has ended; `before` is the one before it in this run."""

    def idle(self, last: Batch) -> None:
        """A query found nothing to read since its last batch."""

    def ended(self, last: Batch, *, failed: bool) -> None:
        """A query has ended."""


class Listener(StreamingQueryListener):
    """Tells an observer of the queries of a session that read through the connector."""

    def __init__(self, observer: QueryObserver) -> None:
        self._observer = observer
        self._running: dict[str, Query] = {}
        self._ended = Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        with self._ended:
            self._running[str(event.runId)] = Query(event.name or str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        batch = batch_of(event.progress)
        if batch is None:
            return
        query = self._running.setdefault(batch.run, Query(batch.query))
        before, query.last = query.last, batch
        self._observer.batch(batch, before)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        query = self._running.get(str(event.runId))
        if query is not None and query.last is not None:
            self._observer.idle(query.last)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._ended:
            query = self._running.pop(str(event.runId), None)
            self._ended.notify_all()
        if query is not None and query.last is not None:
            self._observer.ended(query.last, failed=event.exception is not None)

    def wait(self, active: set[str], patience: float) -> None:
        """Wait until all runs but the `active` ones are known to have ended, as events come late."""
        deadline = time.monotonic() + patience
        with self._ended:
            while self._running.keys() - active and (left := deadline - time.monotonic()) > 0:
                self._ended.wait(left)
