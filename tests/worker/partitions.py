"""A partition of messages, decided about without Spark and without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from babelqueue_spark.worker.admission import Admission
from babelqueue_spark.worker.deciding import Decisions, decide
from babelqueue_spark.worker.handlers.calls import Calls
from babelqueue_spark.worker.handlers.routes import MessageHandler, Routes, Subscriber
from babelqueue_spark.worker.handlers.rules import Rules
from babelqueue_spark.worker.handlers.running import MessageHandlers
from babelqueue_spark.worker.outcomes import Policy
from babelqueue_spark.worker.publishing import Publishing
from babelqueue_spark.worker.rows import INPUT, Rows
from tests.streams import envelope

OWNER = "a" * 32


def policy(max_attempts: int) -> Policy:
    """A policy that retries at once."""
    return Policy(max_attempts=max_attempts, backoff=())


def rules(**changes: Any) -> Rules:
    """Rules of a broker with headers, which takes whatever is published."""
    given = {
        "policy": policy(3),
        "headers": True,
        "can_wait": lambda _: True,
        "check": lambda _: None,
        "publishing": Publishing(failure_queue="failures"),
    }
    return Rules(**{**given, **changes})


def rows_of(*urns: str, **columns: Sequence[Any]) -> Rows:
    """Messages of these URNs, whose `order_id` is their number, with further columns."""
    count = len(urns)
    given: dict[str, Sequence[Any]] = {
        "body": [envelope(number) for number in range(count)],
        "queue": ["orders"] * count,
        "attempts": [0] * count,
        "job": urns,
        "trace_id": ["t"] * count,
        "id": [f"id-{number}" for number in range(count)],
        **columns,
    }
    arrays = [pa.array(given.get(field.name, [None] * count), field.type) for field in INPUT]
    return Rows([pa.RecordBatch.from_arrays(arrays, schema=INPUT)])


def decided(
    rows: Rows,
    *routes: MessageHandler | Subscriber,
    timeout: float | None = None,
    store: Any = None,
    **changes: Any,
) -> Decisions:
    """What is decided about messages, with these handlers and subscribers."""
    table = Routes(route for route in routes if isinstance(route, MessageHandler))
    for route in routes:
        if isinstance(route, Subscriber):
            table.subscribe(route)
    with Calls(timeout) as calls:
        handlers = MessageHandlers(table, calls, "state")

        def wanted(row: int) -> bool:
            return rows.is_acceptable(row) and handlers.has(rows.jobs[row])

        return decide(rows, handlers, Admission(store, OWNER, rows.ids, wanted), rules(**changes), calls)
