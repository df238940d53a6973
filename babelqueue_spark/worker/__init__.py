"""Route messages to handlers and settle each: acknowledge, retry, release, drop or dead-letter."""

import babelqueue_spark.needs_spark  # noqa: F401

from importlib import import_module
from typing import TYPE_CHECKING, Any

from babelqueue_spark.packages import brought_by
from babelqueue_spark.worker.backoff import Backoff
from babelqueue_spark.worker.counts import Counts
from babelqueue_spark.worker.dead_letters.moves import Move, Redriven
from babelqueue_spark.worker.dead_letters.redrive import redrive
from babelqueue_spark.worker.handlers.limits import Circuit
from babelqueue_spark.worker.messages import Cancel, Message, Outgoing, Reject, Retry
from babelqueue_spark.worker.outcomes import Policy
from babelqueue_spark.worker.publishing import Publishing
from babelqueue_spark.worker.stores.idempotency import IdempotencyStore, Record
from babelqueue_spark.worker.worker import Worker

if TYPE_CHECKING:
    from babelqueue_spark.worker.stores.redis_store import RedisStore
    from babelqueue_spark.worker.stores.sql_store import SqlStore

__all__ = [
    "Backoff",
    "Cancel",
    "Circuit",
    "Counts",
    "IdempotencyStore",
    "Message",
    "Move",
    "Outgoing",
    "Policy",
    "Publishing",
    "Record",
    "RedisStore",
    "Redriven",
    "Reject",
    "Retry",
    "SqlStore",
    "Worker",
    "redrive",
]

_STORES = {"RedisStore": ("stores.redis_store", "redis"), "SqlStore": ("stores.sql_store", "sql")}


def __getattr__(name: str) -> Any:
    if name not in _STORES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _STORES[name]
    with brought_by(extra, name, "redis", "sqlalchemy"):
        return getattr(import_module(f"{__name__}.{module}"), name)
