"""What queries, workers and queues tell Prometheus, and one log line for each batch."""

import babelqueue_spark.needs_spark  # noqa: F401

# isort: split
from typing import TYPE_CHECKING, Any

from babelqueue_spark.metrics.batch_log import log_batches
from babelqueue_spark.packages import brought_by

if TYPE_CHECKING:
    from babelqueue_spark.metrics.observing import Observer, observe

__all__ = ["Observer", "log_batches", "observe"]


def __getattr__(name: str) -> Any:
    if name not in ("Observer", "observe"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with brought_by("metrics", name, "prometheus_client"):
        from babelqueue_spark.metrics import observing
    return getattr(observing, name)
