"""Who hears of the batches of this process's workers; metrics subscribe here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from babelqueue_spark.worker.counts import Counts

logger = logging.getLogger(__name__)

BatchObserver = Callable[[Counts], None]

_observers: list[BatchObserver] = []


@contextmanager
def observed(observer: BatchObserver) -> Iterator[None]:
    """Call `observer` with the counts of each batch that a worker of this process ends."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def tell(counts: Counts) -> None:
    """Tell all observers of the counts of a batch; one that raises disturbs nobody."""
    for observer in tuple(_observers):
        try:
            observer(counts)
        except Exception as error:  # noqa: BLE001 (an observer is not a part of the batch)
            logger.warning("a batch was not observed: %s", type(error).__name__)
