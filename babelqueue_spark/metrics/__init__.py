"""What queries, workers and queues tell Prometheus, and one log line for each batch."""

import babelqueue_spark.needs_spark  # noqa: F401

from importlib import import_module
from typing import TYPE_CHECKING, Any

from babelqueue_spark.metrics.batch_log import log_batches
from babelqueue_spark.packages import brought_by

if TYPE_CHECKING:
    from babelqueue_spark.metrics.observer import Observer, WorkerMetrics, observe

__all__ = ["Observer", "WorkerMetrics", "log_batches", "observe"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with brought_by("metrics", name, "prometheus_client"):
        return getattr(import_module(f"{__name__}.observer"), name)
