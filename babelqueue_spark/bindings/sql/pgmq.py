"""The queues of pgmq in PostgreSQL, which Supabase offers, by the extension's own functions."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DataError

from babelqueue_spark.bindings.batches import counted_attempts, deliveries, fitting
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.sql.base import Database, first_fitting
from babelqueue_spark.bindings.sql.options import SqlOptions
from babelqueue_spark.bindings.sql.tables import markers
from babelqueue_spark.errors import BrokerError

LONGEST_QUEUE = 47
GROUP = "x-pgmq-group"
"""Header with the key of a message: pgmq's FIFO group."""
ENCODED = "babelqueue-body"
"""Header of a body that is no JSON: it is `base64`, as a JSON string."""
_BROWSE_ROWS = 5_000
_BROWSE_BYTES = 32 << 20
_LONGEST_DELAY = 2**31 - 1

_VISIBLE = sa.literal_column("vt <= clock_timestamp()", sa.Boolean)
message_id = sa.column("msg_id", sa.BigInteger)
_SIZE = sa.literal_column("coalesce(octet_length(message::text), 4)", sa.Integer)
_WAITS_SINCE: sa.ColumnElement[float] = sa.literal_column(
    "extract(epoch FROM CASE WHEN read_ct = 0 THEN greatest(enqueued_at, vt) ELSE enqueued_at END)::float8"
)
_UNTIL = "extract(epoch FROM vt)::text"
_HEADERS = (
    "(SELECT array_agg(ARRAY[key, value]) FROM jsonb_each_text("
    "CASE WHEN jsonb_typeof(headers) = 'object' THEN headers END) WHERE value IS NOT NULL)"
)
_ENQUEUED = "CASE WHEN isfinite(enqueued_at) THEN (extract(epoch FROM enqueued_at) * 1000)::bigint END"
_ROW = f"msg_id, coalesce(message::text, 'null'), {_HEADERS}, read_ct, {_ENQUEUED}, {_UNTIL}"
_COLUMNS: sa.ColumnElement[Any] = sa.literal_column(_ROW)
_THERE = sa.text(
    "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('pgmq.message_record') "
    "AND attname = 'headers'), EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = 'pgmq' AND c.relname = :table)"
)
_CREATE = sa.text("SELECT pgmq.create(CAST(:queue AS text))")
_READ = sa.text(
    f"SELECT {_ROW} FROM pgmq.read(CAST(:queue AS text), :seconds, :messages) ORDER BY msg_id"  # noqa: S608
)
_SEND = sa.text(
    "SELECT count(*) FROM pgmq.send_batch(CAST(:queue AS text), CAST(:bodies AS jsonb[]), "
    "CAST(:headers AS jsonb[]), CAST(:delay AS integer))"
)
_DELETE, _ARCHIVE, _RELEASE = (
    sa.text(f"SELECT count(*) FROM {called}")  # noqa: S608
    for called in (
        "pgmq.delete(CAST(:queue AS text), CAST(:ids AS bigint[]))",
        "pgmq.archive(CAST(:queue AS text), CAST(:ids AS bigint[]))",
        "unnest(CAST(:ids AS bigint[])) AS id, pgmq.set_vt(CAST(:queue AS text), id, 0)",
    )
)
_FILLED = sa.text("SELECT queue_name FROM pgmq.metrics_all() WHERE queue_length > 0 LIMIT 1000")

_Claim = tuple[str, int]
"""Until when a row is claimed, in seconds since 1970, and its id."""


class _Schema:
    """Of the extension, which makes the tables of queues itself."""

    whose = "pgmq's"

    def __init__(self) -> None:
        self.metadata = sa.MetaData()
        self.published = markers("pgmq", sa.MetaData())


class _Row(NamedTuple):
    """As a queue gives a message: `enqueued_at` in milliseconds, `until` in seconds since 1970."""

    id: int
    message: str
    headers: list[tuple[str, str]] | None
    read_count: int
    enqueued_at: int | None
    until: str


class _New(NamedTuple):
    body: bytes
    headers: dict[str, str]
    is_json: bool


class PgmqBinding(Database):
    """A queue is a table in the schema `pgmq`, and a body a value of JSON."""

    capabilities = replace(Database.capabilities, keys=True, headers=True)

    def __init__(self, config: BindingConfig) -> None:
        options = SqlOptions.parse(config)
        super().__init__(config, options, _Schema())
        self._end = _ARCHIVE if options.acknowledge == "archive" else _DELETE

    def backlog(self, queue: str) -> int:
        """Messages that are visible."""
        counted = sa.select(sa.func.count()).select_from(_table(queue)).where(_VISIBLE)
        with self._client.reading() as connection:
            return connection.execute(counted).scalar_one() if self._has(connection, queue) else 0

    def oldest(self, queue: str) -> float | None:
        """When the message that is read next was sent, or due."""
        first = sa.select(_WAITS_SINCE).select_from(_table(queue)).where(_VISIBLE).order_by(message_id)
        with self._client.reading() as connection:
            since = connection.scalar(first.limit(1)) if self._has(connection, queue) else None
        return since if since is not None and math.isfinite(since) else None

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Read, by `pgmq.read`, those that fit; they are invisible until the timeout ends."""
        return self._client.write(lambda connection: self._claimed(connection, queue, messages, max_bytes))

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Delete or archive the messages that nobody has read since."""
        return self._settle(queue, deliveries, self._end)

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """Make them visible; `read_ct` stays."""
        self._settle(queue, deliveries, _RELEASE)

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Browse by id, up to the newest message at the start."""
        seen, newest = -1, -1
        with self._client.reading() as connection:
            if self._has(connection, queue):
                newest = (
                    connection.scalar(sa.select(sa.func.max(message_id)).select_from(_table(queue))) or -1
                )
        while seen < newest:
            wanted = (message_id > seen, message_id <= newest)
            with self._client.reading() as connection:
                ids = self._fitting(connection, queue, _BROWSE_ROWS, _BROWSE_BYTES, *wanted)
                seen = ids[-1] if ids else newest
                rows = sa.select(_COLUMNS).select_from(_table(queue)).order_by(message_id)
                found = connection.execute(rows.where(_VISIBLE, wanted[0], message_id <= seen)).all()
            yield _received([_Row(*row) for row in found], before=1)

    def queues(self) -> list[str]:
        with self._client.reading() as connection:
            return list(connection.scalars(_FILLED))

    def missing(self, queue: str) -> str:
        with self._client.reading() as connection:
            return "" if self._has(connection, queue) else f"the queue {queue}"

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """Return the larger of the body's count and the reads before this one."""
        return counted_attempts(body_attempts, deliveries.column("count"))

    def check_queue(self, queue: str) -> None:
        super().check_queue(queue)
        if re.search(r"\$|;|--|'", queue):
            raise self.refused_name(queue, "pgmq takes no $, ;, -- or '")
        if queue != queue.lower():
            raise self.refused_name(queue, "pgmq's tables have names in lower case, write it so")
        if len(queue.encode()) > LONGEST_QUEUE:
            raise self.refused_name(queue, f"pgmq takes {LONGEST_QUEUE} bytes at most")

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Send in one transaction; the first message of a queue creates it."""
        self._check_sizes(messages)
        new, delays = _new(messages), messages.column("delay").to_pylist()
        seconds = (min(math.ceil(max(0, delay or 0) / 1000), _LONGEST_DELAY) for delay in delays)
        runs = [(delay, [each for each, _ in run]) for delay, run in _runs(zip(new, seconds, strict=True))]

        def append(connection: sa.Connection) -> int:
            if runs and not self._has(connection, queue):
                connection.execute(_CREATE, {"queue": queue})
            for delay, run in runs:
                _send(connection, queue, run, delay)
            return len(new)

        return self._inserted(queue, messages, idempotency_key, append)

    def _is_new(self, connection: sa.Connection, idempotency_key: str) -> bool:
        self._published.create(connection, checkfirst=True)
        return super()._is_new(connection, idempotency_key)

    def _has(self, connection: sa.Connection, queue: str) -> bool:
        """Return whether there is such a queue; `BrokerError` where there is no pgmq."""
        is_installed, is_there = connection.execute(_THERE, {"table": f"q_{queue}"}).one()
        if not is_installed:
            raise BrokerError(
                f"{self._client.address}: it has no pgmq, or one before 1.5, which has no headers: "
                "CREATE EXTENSION pgmq, or ALTER EXTENSION pgmq UPDATE"
            )
        return bool(is_there)

    def _claimed(
        self, connection: sa.Connection, queue: str, messages: int, max_bytes: int
    ) -> pa.RecordBatch:
        if not self._has(connection, queue):
            return deliveries(0)
        # Locked, so that these are what is read next.
        ids = self._fitting(connection, queue, messages, max_bytes, locked=True)
        if not ids:
            return deliveries(0)
        wanted = {"queue": queue, "seconds": self._retry_after, "messages": len(ids)}
        rows = [_Row(*row) for row in connection.execute(_READ, wanted)]
        # Others may have become visible in between, before them.
        kept = fitting((len(row.message.encode()) for row in rows), max_bytes)
        if beyond := [row.id for row in rows[kept:]]:
            connection.execute(_RELEASE, {"queue": queue, "ids": beyond})
        return _received(rows[:kept], before=0)

    def _fitting(
        self,
        connection: sa.Connection,
        queue: str,
        messages: int,
        max_bytes: int,
        *conditions: sa.ColumnElement[bool],
        locked: bool = False,
    ) -> list[int]:
        """Ids of the first visible messages that fit."""
        first = sa.select(message_id, _SIZE).select_from(_table(queue)).where(_VISIBLE, *conditions)
        first = first.order_by(message_id).limit(messages)
        return first_fitting(connection, first, max_bytes, locked=locked)

    def _settle(self, queue: str, deliveries: pa.RecordBatch, verb: sa.TextClause) -> pa.BooleanArray:
        """Do it to the messages whose claims are still ours; true for those."""
        claims = [_claim(receipt) for receipt in deliveries.column("receipt").to_pylist()]

        def settle(connection: sa.Connection) -> set[_Claim]:
            held = self._held(connection, queue, claims)
            if held:
                connection.execute(verb, {"queue": queue, "ids": [row for _, row in held]})
            return held

        held = self._client.write(settle) if claims else set()
        return pa.array([claim in held for claim in claims], pa.bool_())

    def _held(self, connection: sa.Connection, queue: str, claims: list[_Claim]) -> set[_Claim]:
        if not self._has(connection, queue):
            return set()
        ours = message_id == sa.any_(sa.literal([row for _, row in claims], sa.ARRAY(sa.BigInteger)))
        until: sa.ColumnElement[str] = sa.literal_column(_UNTIL)
        rows = sa.select(until, message_id).select_from(_table(queue)).where(ours)
        return {(row[0], row[1]) for row in connection.execute(rows.with_for_update())} & set(claims)


def _table(queue: str) -> sa.TableClause:
    return sa.table(f"q_{queue}", schema="pgmq")


def _claim(receipt: bytes) -> _Claim:
    until, _, row = receipt.decode().partition(" ")
    return until, int(row)


def _received(rows: list[_Row], *, before: int) -> pa.RecordBatch:
    """Return rows as deliveries, which were read as often as `read_ct` says, `before` this delivery."""
    headers = [dict(row.headers or ()) for row in rows]
    return deliveries(
        len(rows),
        body=pa.array(list(map(_body, rows, headers)), pa.binary()),
        headers=[[pair for pair in each.items() if pair[0] != ENCODED] for each in headers],
        id=[str(row.id) for row in rows],
        count=[row.read_count + before for row in rows],
        redelivered=[row.read_count + before > 1 for row in rows],
        enqueued_at=[row.enqueued_at for row in rows],
        key=[each.get(GROUP) for each in headers],
        receipt=None if before else [f"{row.until} {row.id}".encode() for row in rows],
    )


def _body(row: _Row, headers: dict[str, str]) -> bytes:
    if headers.get(ENCODED) != "base64":
        return row.message.encode()
    try:
        return base64.b64decode(json.loads(row.message), validate=True)
    except (ValueError, TypeError):
        return row.message.encode()


def _new(messages: pa.RecordBatch) -> list[_New]:
    columns = (messages.column(name).to_pylist() for name in ("body", "headers", "key"))
    return [
        _New(body, {**dict(headers or ()), **({GROUP: key} if key else {})}, _is_json(body))
        for body, headers, key in zip(*columns, strict=True)
    ]


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _runs(pairs: Any) -> Iterator[tuple[int, Any]]:
    """Messages in a row with the same delay."""
    return groupby(pairs, key=lambda pair: pair[1])


def _send(connection: sa.Connection, queue: str, new: list[_New], delay: int) -> None:
    """Send messages; those whose JSON PostgreSQL cannot hold go as those that have none."""
    texts = [
        each.body.decode() if each.is_json else json.dumps(base64.b64encode(each.body).decode())
        for each in new
    ]
    own = [each.headers if each.is_json else {**each.headers, ENCODED: "base64"} for each in new]
    headers = [_json(each) if each else None for each in own]
    try:
        with connection.begin_nested():
            connection.execute(_SEND, {"queue": queue, "bodies": texts, "headers": headers, "delay": delay})
    except DataError:
        if len(new) == 1 and not new[0].is_json:
            raise
        halves = [new[: len(new) // 2], new[len(new) // 2 :]]
        for half in halves if len(new) > 1 else [[new[0]._replace(is_json=False)]]:
            _send(connection, queue, half, delay)


def _json(headers: dict[str, str]) -> str:
    """Return headers as JSON; PostgreSQL takes no NUL."""
    return json.dumps({name.replace("\0", ""): value.replace("\0", "") for name, value in headers.items()})
