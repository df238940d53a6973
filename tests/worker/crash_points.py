"""Arms the points of the worker. Handlers name this module, so that it is imported before their task begins."""

from __future__ import annotations

from sitecustomize import after, before, enter, reached

from babelqueue_spark.worker import handling
from babelqueue_spark.worker.decisions import DecisionLog

__all__ = ["enter", "reached"]

before(DecisionLog, "write", "before the ledger")
after(DecisionLog, "write", "after the ledger")
after(handling, "publish", "in mid-publish")
after(handling.Partition, "settle", "after the publish")
