"""Log what is done with each message: a log line an event, and on request a line of the message log."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.connector.message_log import MessageLog, json_line
from babelqueue_spark.envelope import decode
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.worker.counts import Counts
from babelqueue_spark.worker.messages import Message
from babelqueue_spark.worker.outcomes import Outcome, Verdict, WorkerReason
from babelqueue_spark.worker.rows import Rows

logger = logging.getLogger("babelqueue_spark.worker")

EVENTS = {
    Outcome.ACKED: ("job.ack", logging.INFO),
    Outcome.RETRIED: ("job.retry", logging.WARNING),
    Outcome.RELEASED: ("job.released", logging.INFO),
    Outcome.DROPPED: ("job.dropped", logging.INFO),
    Outcome.DEAD_LETTERED: ("job.dead_letter", logging.ERROR),
}
"""Outcome → name of the event, and its level."""
_MOST_SHOWN = 5


def log(verdict: Verdict, rows: Rows, row: int) -> None:
    """Log one line: the event, and the message it is about as JSON."""
    event, level = EVENTS[verdict.outcome]
    if logger.isEnabledFor(level):
        logger.log(level, "%s %s", event, json_line({**rows.about(row), **_told(verdict)}))


def _told(verdict: Verdict) -> dict[str, Any]:
    """Return a decision as the seeds name its parts; what it does not have is left out."""
    parts = {
        "attempts": verdict.attempts,
        "reason": verdict.reason,
        "delay": verdict.delay or None,
        "error": verdict.error,
        "exception": verdict.exception,
    }
    return {name: value for name, value in parts.items() if value is not None}


def log_taken(lines: MessageLog, verdicts: Sequence[Verdict], rows: Rows) -> None:
    """Write a line of the message log about each message that was read, and what was decided about it."""
    found = (
        (EVENTS[verdict.outcome][0], {**rows.about(row), **_told(verdict)})
        for row, verdict in enumerate(verdicts)
    )
    lines.write(found, rows.table.column("body").combine_chunks())


def log_subscriber_failed(message: Message, subscriber: str, error: str | None, exception: str) -> None:
    """Log one line about a subscriber that raised."""
    content = {
        "queue": message.queue,
        "urn": message.job,
        "trace_id": message.trace_id,
        "id": message.id,
        "subscriber": subscriber,
        "error": error,
        "exception": exception,
    }
    logger.error("subscriber.failed %s", json_line(content))


def log_lost_replies(queue: str, replies: pa.RecordBatch, error: BabelQueueError) -> None:
    """Log one line about replies that their queue does not take."""
    envelopes = decode(replies.column("body"))
    content = {
        "queue": queue,
        "trace_ids": envelopes.column("trace_id").to_pylist(),
        "ids": pc.struct_field(envelopes.column("meta"), "id").to_pylist(),
        "error": error.text,
    }
    logger.error("reply.lost %s", json_line(content))


def log_unhandled(counts: Counts, patterns: Sequence[str]) -> bool:
    """Log one line about URNs of a batch that have no handler; return whether there were any."""
    urns = {urn for urn, _, reason in counts.by if urn and reason == WorkerReason.UNKNOWN_URN}
    if not urns:
        return False
    shown = sorted(urns)[:_MOST_SHOWN]
    content = {
        "urns": shown,
        "nearest": {urn: near[0] for urn in shown if (near := difflib.get_close_matches(urn, patterns, n=1))},
        "handlers": list(patterns[:_MOST_SHOWN]),
    }
    logger.warning("handler.missing %s", json_line(content))
    return True
