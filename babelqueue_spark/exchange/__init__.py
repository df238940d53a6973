"""Route messages to queues, take them through stages, schedule them for later, keep events, ask."""

import babelqueue_spark.needs_spark  # noqa: F401

from importlib import import_module
from typing import TYPE_CHECKING, Any

from babelqueue_spark.exchange.asking import ask
from babelqueue_spark.exchange.context import derives
from babelqueue_spark.exchange.exchange import Exchange, Written
from babelqueue_spark.exchange.stages import Stages, clears
from babelqueue_spark.exchange.stream_ids import StreamId
from babelqueue_spark.exchange.stream_shards import stream_shard
from babelqueue_spark.packages import brought_by

if TYPE_CHECKING:
    from babelqueue_spark.exchange.event_store import Cursor, Description, EventStore, Slice
    from babelqueue_spark.exchange.outbox import Outbox, Relayed
    from babelqueue_spark.exchange.releasing import Released
    from babelqueue_spark.exchange.replaying import Replayed
    from babelqueue_spark.exchange.schedule import Schedule

__all__ = [
    "Cursor",
    "Description",
    "EventStore",
    "Exchange",
    "Outbox",
    "Relayed",
    "Released",
    "Replayed",
    "Schedule",
    "Slice",
    "Stages",
    "StreamId",
    "Written",
    "ask",
    "clears",
    "derives",
    "stream_shard",
]

_SCHEDULE = ("schedule", "sql", "sqlalchemy")
_OUTBOX = ("outbox", "sql", "sqlalchemy")
_EVENTS = ("event_store", "events", "deltalake")
_OF_EXTRAS = {
    "Cursor": _EVENTS,
    "Description": _EVENTS,
    "EventStore": _EVENTS,
    "Outbox": _OUTBOX,
    "Relayed": _OUTBOX,
    "Released": _SCHEDULE,
    "Replayed": _EVENTS,
    "Schedule": _SCHEDULE,
    "Slice": _EVENTS,
}
"""Name → the module that has it, and the extra and the package that the module needs."""


def __getattr__(name: str) -> Any:
    if name not in _OF_EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra, package = _OF_EXTRAS[name]
    with brought_by(extra, name, package):
        return getattr(import_module(f"{__name__}.{module}"), name)
