"""What becomes of messages that a handler has seen."""

from babelqueue_spark.worker.backoff import Backoff

__all__ = ["Backoff"]
