"""Hold the rows of one partition for handlers: by number, in plain Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.envelope import SCHEMA_VERSION
from babelqueue_spark.envelope.columns import META_TYPE, is_blank
from babelqueue_spark.errors import OptionError
from babelqueue_spark.forms import ENVELOPES, Form
from babelqueue_spark.worker.decisions import fingerprint
from babelqueue_spark.worker.messages import CAUSATION_META, Message

VERSION_HEADERS = ("bq-schema-version", "bq_schema_version")
"""Where brokers with native properties carry the schema version; Artemis has no hyphens."""

INPUT = pa.schema(
    [
        ("body", pa.binary()),
        ("queue", pa.string()),
        ("headers", OUTGOING.field("headers").type),
        ("attempts", pa.int32()),
        ("job", pa.string()),
        ("trace_id", pa.string()),
        ("id", pa.string()),
        ("key", pa.string()),
        ("error", pa.string()),
        ("violation", pa.string()),
        ("extra", META_TYPE.field("extra").type),
    ]
)
"""What a task has to know of each row."""


class Rows:
    """Rows of `INPUT`, messages of one form.

    Attributes:
        table: the columns, each in one piece.
        bodies, queues, jobs, ids, keys, errors, violations: the columns of that name as lists. The job of an
            accepted message that names none is empty.
        attempts: the column, 0 where it is null.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], form: Form = ENVELOPES) -> None:
        self._form = form
        self.table = pa.Table.from_batches(batches).select(INPUT.names).cast(INPUT).combine_chunks()
        self.bodies: list[bytes] = self._list("body")
        self.queues: list[str] = self._list("queue")
        self.ids: list[str | None] = self._list("id")
        self.errors: list[str | None] = self._list("error")
        self.jobs: list[str] = self._list("job")
        self._trace_ids: list[str] = self._list("trace_id")
        if form.native:
            self.jobs = [
                job or "" if error is None else job for job, error in zip(self.jobs, self.errors, strict=True)
            ]
        self.violations: list[str | None] = self._list("violation")
        self.attempts: list[int] = [count or 0 for count in self._list("attempts")]
        self._headers: list[Any] = self._pairs("headers")
        self.keys: list[str | None] = self._list("key")

    def check_form(self) -> None:
        """Raise `OptionError` for messages without an envelope, where envelopes are expected."""
        if self._form.native:
            return
        for error, trace_id in zip(self.errors, self._trace_ids, strict=True):
            if error is None and trace_id is None:
                raise OptionError(
                    "the worker was given messages without an envelope: give it the option 'envelope' that "
                    "the read has"
                )

    def __len__(self) -> int:
        return len(self.bodies)

    @cached_property
    def fingerprint(self) -> str:
        """Digest the rows by their bodies and queues."""
        return fingerprint(self.bodies, [queue.encode() for queue in self.queues])

    def is_gated(self, row: int) -> bool:
        """Tell whether a header names another schema version; a blank one names none."""
        headers = self._headers[row]
        return bool(headers) and any(
            name in VERSION_HEADERS and not is_blank(value) and value != str(SCHEMA_VERSION)
            for name, value in headers
        )

    def is_acceptable(self, row: int) -> bool:
        """Tell whether a handler may get the message."""
        return self.errors[row] is None and not self.is_gated(row)

    def message(self, row: int) -> Message:
        """Build what a handler gets."""
        return Message(
            self.jobs[row],
            self._trace_ids[row],
            self.ids[row],
            self.attempts[row],
            self.queues[row],
            self.bodies[row],
            {name: value for name, value in self._headers[row] or () if value is not None},
            self.keys[row],
            self._form,
        )

    def context(self, row: int, keys: Sequence[str]) -> dict[str, str]:
        """Return the keys of `meta` for a message that follows from this one, with values as JSON text."""
        message_id = self.ids[row]
        cause = {CAUSATION_META: json.dumps(message_id, ensure_ascii=False)} if message_id else {}
        return cause | {key: text for key, text in self._extra[row] or () if key in keys} if keys else cause

    def about(self, row: int) -> dict[str, Any]:
        """Name the message, for a log line."""
        return {
            "queue": self.queues[row],
            "urn": self.jobs[row],
            "trace_id": self._trace_ids[row],
            "id": self.ids[row],
        }

    def parts(self, rows: Sequence[int]) -> pa.RecordBatch:
        """Take `body` and `headers` of some messages; null where there are none."""
        headers = pa.array([self._headers[row] or None for row in rows], INPUT.field("headers").type)
        return pa.RecordBatch.from_arrays([self.column("body", rows), headers], ["body", "headers"])

    def column(self, name: str, rows: Sequence[int]) -> pa.Array:
        """Take some values of a column."""
        return self.table.column(name).combine_chunks().take(pa.array(rows, pa.int64()))

    @cached_property
    def _extra(self) -> list[Any]:
        return self._pairs("extra")

    def _pairs(self, name: str) -> list[Any]:
        maps = self.table.column(name)
        return self._list(name) if any(len(chunk.keys) for chunk in maps.chunks) else [None] * len(maps)

    def _list(self, name: str) -> list[Any]:
        values: list[Any] = self.table.column(name).to_pylist()
        return values
