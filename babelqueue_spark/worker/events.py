"""Log what is done with each message: a log line an event, and on request a file of whole messages."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from babelqueue_spark.worker.outcomes import Outcome, Verdict
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


def log(verdict: Verdict, rows: Rows, row: int) -> None:
    """Log one line: the event, and the message it is about as JSON."""
    event, level = EVENTS[verdict.outcome]
    if logger.isEnabledFor(level):
        logger.log(level, "%s %s", event, _line({**rows.about(row), **_told(verdict)}))


def _told(verdict: Verdict) -> dict[str, Any]:
    """A decision as the seeds name its parts; what it does not have is left out."""
    parts = {
        "attempts": verdict.attempts,
        "reason": verdict.reason,
        "delay": verdict.delay or None,
        "error": verdict.error,
        "exception": verdict.exception,
    }
    return {name: value for name, value in parts.items() if value is not None}


class MessageLog:
    """A file of JSON lines, one for each message that a task took or publishes; None = no lines."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def taken(self, verdict: Verdict, rows: Rows, row: int) -> None:
        """Write a message that was read, and what was decided about it."""
        if self._file is not None:
            event, _ = EVENTS[verdict.outcome]
            self._write({"event": event, **rows.about(row), **_told(verdict)}, rows.bodies[row])

    def published(self, messages: pa.RecordBatch) -> None:
        """Write the `OUTGOING_MESSAGES` that are to be published."""
        if self._file is not None:
            for message in messages.to_pylist():
                line = {
                    "event": "published",
                    "queue": message["queue"],
                    "delay": (message["delay"] or 0) / 1000,
                }
                self._write(line, message["body"])

    def _write(self, line: dict[str, Any], body: bytes) -> None:
        assert self._file is not None, "lines were asked for"
        self._file.write(f"{_line({**line, **_readable(body)})}\n")


@contextmanager
def message_log(folder: str | None, name: str) -> Iterator[MessageLog]:
    """Open a file in a folder that driver and executors share; None = no lines."""
    if folder is None:
        yield MessageLog(None)
        return
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with (path / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        yield MessageLog(file)


def _readable(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"))
