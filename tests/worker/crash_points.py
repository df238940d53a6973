"""Arms the points of the worker. Handlers name this module, so that it is imported before their task begins."""

from __future__ import annotations

from sitecustomize import after, before, enter, reached

from babelqueue_spark.worker import handling
from babelqueue_spark.worker.ledger import Ledger

__all__ = ["enter", "reached"]

before(Ledger, "write", "before the ledger")
after(Ledger, "write", "after the ledger")
after(handling.Partition, "_publish", "in mid-publish")
after(handling.Partition, "settle", "after the publish")
