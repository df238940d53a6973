"""The table of Debezium's outbox event router; a table beside it has the claims of its rows."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from babelqueue_spark.bindings.batches import deliveries, envelopes_of
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.sql.base import Database, first_fitting
from babelqueue_spark.bindings.sql.dialects import Dialect, MySql, Postgres
from babelqueue_spark.bindings.sql.options import SqlOptions
from babelqueue_spark.bindings.sql.tables import IN_MYSQL, LONGEST_QUEUE, PAYLOAD, markers, mirror

TYPE = "type"
"""Header with what the column of this name says."""
_ID_LENGTH = 255
_COLLATION = "utf8mb4_bin"
_ROWS = 1_000
_BROWSE_BYTES = 32 << 20
_NO_PAYLOAD = b"null"


class DebeziumTables:
    """The outbox of Debezium's documentation, and beside it a table of claims."""

    whose = "that of Debezium's outbox event router"

    def __init__(self, table: str) -> None:
        self.metadata = sa.MetaData()
        word = sa.String(LONGEST_QUEUE)
        self.events = sa.Table(
            table,
            self.metadata,
            sa.Column("id", sa.String(36).with_variant(postgresql.UUID(), "postgresql"), primary_key=True),
            sa.Column("aggregatetype", word, nullable=False),
            sa.Column("aggregateid", word, nullable=False),
            sa.Column("type", word, nullable=False),
            sa.Column("payload", PAYLOAD),
            **IN_MYSQL,
        )
        in_mysql = mysql.VARCHAR(_ID_LENGTH, charset="utf8mb4", collation=_COLLATION)
        self.claims = sa.Table(
            f"{table}_claims",
            self.metadata,
            sa.Column("id", sa.String(_ID_LENGTH).with_variant(in_mysql, "mysql"), primary_key=True),
            sa.Column("claim", sa.String(32), nullable=False),
            sa.Column("until", sa.BigInteger, nullable=False),
            sa.Column("deliveries", sa.Integer, nullable=False),
            **IN_MYSQL,
        )
        self.published = markers(table, self.metadata)


class Events:
    """An outbox as it is: the types of `id` and `payload` are its service's choice.

    Values go in untyped, so that the database takes them for what its column is.
    """

    def __init__(self, name: str, connection: sa.Connection, dialect: Dialect) -> None:
        types = {each["name"]: each["type"] for each in sa.inspect(connection).get_columns(name)}
        ids, self.has_blobs = _python_type(types["id"]), _python_type(types["payload"]) is bytes
        self._has_numbers, self._has_bytes = ids is int, ids is bytes
        self._dialect = dialect
        words = (sa.column(each, sa.String()) for each in ("aggregatetype", "aggregateid", "type"))
        self.table = sa.table(name, sa.column("id"), *words, sa.column("payload"))
        self.id: sa.ColumnElement[str] = self._text_of(self.table.c.id)
        column = self.table.c.payload
        self.payload: sa.ColumnElement[Any] = column if self.has_blobs else dialect.payload(column)
        if isinstance(dialect, Postgres) and not self.has_blobs:
            self.payload = sa.cast(column, sa.Text)
        self.size = sa.func.coalesce(dialect.size(self.payload), len(_NO_PAYLOAD))

    def among(self, ids: Sequence[str]) -> sa.ColumnElement[bool]:
        """Return the condition that the id is one of these."""
        values = [bytes.fromhex(each) if self._has_bytes else each for each in ids]
        return self.table.c.id.in_(sa.bindparam("ids", values, sa.types.NULLTYPE, expanding=True))

    def between(self, seen: str | None, newest: str) -> sa.ColumnElement[bool]:
        """Return the condition that the id comes after one, and not after another."""
        column, bounds = self.table.c.id, {"newest": newest, **({} if seen is None else {"seen": seen})}
        given = {
            name: sa.bindparam(name, bytes.fromhex(text) if self._has_bytes else text, sa.types.NULLTYPE)
            for name, text in bounds.items()
        }
        up_to = column <= given["newest"]
        return sa.and_(column > given["seen"], up_to) if "seen" in given else up_to

    def new_id(self, event_id: uuid.UUID) -> dict[str, Any]:
        """Return the column of a new row; none where the database counts them."""
        if self._has_numbers:
            return {}
        return {"id": event_id.bytes if self._has_bytes else str(event_id)}

    def _text_of(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        text: sa.ColumnElement[str] = sa.cast(column, sa.String(_ID_LENGTH))
        if self._has_bytes:
            in_hex = (
                sa.func.encode(column, "hex") if isinstance(self._dialect, Postgres) else sa.func.hex(column)
            )
            text = sa.func.lower(in_hex)
        return sa.collate(text, _COLLATION) if isinstance(self._dialect, MySql) else text


class _Row(NamedTuple):
    id: str
    payload: str | bytes | None
    kind: str | None
    key: str | None
    delivery: int | None


class DebeziumBinding(Database):
    """Queues are the values of `aggregatetype`; what is acknowledged is deleted."""

    capabilities = replace(
        Database.capabilities,
        claim_batch=_ROWS,
        publish_batch=_ROWS,
        max_delay=0,
        ordered=False,
        keys=True,
    )

    kept_headers = frozenset({TYPE})

    def __init__(self, config: BindingConfig) -> None:
        options = SqlOptions.parse(config)
        self._tables = DebeziumTables(options.table)
        super().__init__(config, options, self._tables)
        self._events: Events | None = None
        self._last_id = 0

    def backlog(self, queue: str) -> int:
        """Rows that are not claimed."""
        with self._client.reading() as connection:
            events = self._seen(connection)
            counted = (
                sa.select(sa.func.count()).select_from(events.table).where(*self._free(connection, queue))
            )
            return int(connection.scalar(counted) or 0)

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim in the order of ids, by a row in the table of claims."""
        return self._client.write(lambda connection: self._claimed(connection, queue, messages, max_bytes))

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Delete the rows whose claims are still ours."""
        del queue

        def delete(connection: sa.Connection, ids: list[str]) -> None:
            events, claims = self._seen(connection), self._tables.claims
            connection.execute(sa.delete(events.table).where(events.among(ids)))
            connection.execute(sa.delete(claims).where(claims.c.id.in_(ids)))

        return self._settle(deliveries, delete)

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """End the claims; the count of deliveries stays."""
        del queue

        def free(connection: sa.Connection, ids: list[str]) -> None:
            claims = self._tables.claims
            connection.execute(sa.update(claims).where(claims.c.id.in_(ids)).values(claim="", until=0))

        self._settle(deliveries, free)

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Browse by id, up to the last at the start."""
        seen = None
        with self._client.reading() as connection:
            events = self._seen(connection)
            last = sa.select(events.id).select_from(events.table).order_by(events.table.c.id.desc()).limit(1)
            newest = connection.scalar(last)
        while newest is not None:
            with self._client.reading() as connection:
                wanted = events.between(seen, newest)
                ids = self._fitting(connection, queue, _ROWS, _BROWSE_BYTES, wanted)
                rows = self._rows(connection, ids)
            if not ids:
                return
            yield _received(rows, None)
            seen = ids[-1]

    def queues(self) -> list[str]:
        names = sa.select(self._tables.events.c.aggregatetype).distinct().limit(1000)
        with self._client.reading() as connection:
            return list(connection.scalars(names))

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Insert rows in one transaction; the column `type` is the header, else the envelope's job."""
        self._check_sizes(messages)
        count = len(messages)
        bodies, headers, keys = (messages.column(name).to_pylist() for name in ("body", "headers", "key"))
        jobs = envelopes_of(messages).column("job").to_pylist()
        words = [
            {
                "aggregatetype": queue,
                "aggregateid": key or "",
                "type": mirror(dict(given or ()).get(TYPE) or job, LONGEST_QUEUE),
            }
            for key, given, job in zip(keys, headers, jobs, strict=True)
        ]
        ids = self._ids(count)

        def append(connection: sa.Connection) -> int:
            events = self._seen(connection)
            payloads = bodies
            if not events.has_blobs:
                payloads = [self._stored(body, row, count) for row, body in enumerate(bodies)]
            rows = [
                {**events.new_id(event_id), **columns, "payload": payload}
                for event_id, columns, payload in zip(ids, words, payloads, strict=True)
            ]
            if rows:
                connection.execute(sa.insert(events.table), rows)
            return len(rows)

        return self._inserted(queue, messages, idempotency_key, append)

    def _ids(self, count: int) -> list[uuid.UUID]:
        """UUIDs of version 7, each above the one before."""
        first = max(int(self._client.now() * 1000) << 12, self._last_id + 1)
        self._last_id = first + count
        return [
            uuid.UUID(
                int=each >> 12 << 80
                | 7 << 76
                | (each & 0xFFF) << 64
                | 2 << 62
                | int.from_bytes(os.urandom(8)) >> 2
            )
            for each in range(first, first + count)
        ]

    def _seen(self, connection: sa.Connection) -> Events:
        if self._events is None:
            self._events = Events(self._tables.events.name, connection, self._client.dialect)
        return self._events

    def _now(self, connection: sa.Connection) -> int:
        return int(self._client.dialect.now(connection) * 1000)

    def _free(self, connection: sa.Connection, queue: str) -> tuple[sa.ColumnElement[bool], ...]:
        events, claims = self._seen(connection), self._tables.claims
        # Not an anti-join: databases without statistics read all rows for it.
        until = sa.select(claims.c.until).where(claims.c.id == events.id).scalar_subquery()
        is_free = sa.func.coalesce(until, 0) <= self._now(connection)
        return (*self._client.dialect.named(events.table.c.aggregatetype, queue), is_free)

    def _fitting(
        self,
        connection: sa.Connection,
        queue: str,
        messages: int,
        max_bytes: int,
        *conditions: sa.ColumnElement[bool],
        locked: bool = False,
    ) -> list[str]:
        """Ids of the first rows that are not claimed, and fit."""
        events = self._seen(connection)
        first = sa.select(events.id, events.size).select_from(events.table)
        first = first.where(*self._free(connection, queue), *conditions)
        first = first.order_by(events.table.c.id).limit(messages)
        return first_fitting(connection, first, max_bytes, locked=locked)

    def _claimed(
        self, connection: sa.Connection, queue: str, messages: int, max_bytes: int
    ) -> pa.RecordBatch:
        claims, now = self._tables.claims, self._now(connection)
        locked = self._fitting(connection, queue, messages, max_bytes, locked=True)
        if not locked:
            return deliveries(0)
        # What others claimed while we waited for the lock shows only now.
        before = sa.select(claims.c.id, claims.c.until).where(claims.c.id.in_(locked))
        until = {row[0]: row[1] for row in connection.execute(before)}
        ids = [each for each in locked if until.get(each, 0) <= now]
        name = uuid.uuid4().hex
        claim = {"claim": name, "until": now + self._retry_after * 1000}
        again = sa.update(claims).where(claims.c.id.in_([each for each in ids if each in until]))
        connection.execute(again.values(**claim, deliveries=claims.c.deliveries + 1))
        if new := [{"id": each, **claim, "deliveries": 1} for each in ids if each not in until]:
            connection.execute(sa.insert(claims), new)
        return _received(self._rows(connection, ids), name.encode())

    def _rows(self, connection: sa.Connection, ids: list[str]) -> list[_Row]:
        events, claims = self._seen(connection), self._tables.claims
        columns = events.table.c
        rows = sa.select(events.id, events.payload, columns.type, columns.aggregateid, claims.c.deliveries)
        rows = rows.select_from(events.table.outerjoin(claims, claims.c.id == events.id))
        return [_Row(*row) for row in connection.execute(rows.where(events.among(ids)).order_by(columns.id))]

    def _settle(
        self, deliveries: pa.RecordBatch, end: Callable[[sa.Connection, list[str]], None]
    ) -> pa.BooleanArray:
        """End the claims that are still ours; true for those."""
        claims = list(zip(*(deliveries.column(name).to_pylist() for name in ("id", "receipt")), strict=True))

        def settle(connection: sa.Connection) -> set[tuple[str, bytes]]:
            held: set[tuple[str, bytes]] = set()
            for start in range(0, len(claims), _ROWS):
                part = claims[start : start + _ROWS]
                ours = self._held(connection, [row for row, _ in part]) & set(part)
                if ours:
                    end(connection, sorted(row for row, _ in ours))
                held |= ours
            return held

        held = self._client.write(settle)
        return pa.array([claim in held for claim in claims], pa.bool_())

    def _held(self, connection: sa.Connection, ids: list[str]) -> set[tuple[str, bytes]]:
        """Rows with these ids that are there and claimed, locked, and the names of their claims."""
        events, claims = self._seen(connection), self._tables.claims
        rows = sa.select(events.id, claims.c.claim).select_from(events.table)
        rows = rows.join(claims, claims.c.id == events.id).where(events.among(ids)).with_for_update()
        return {(row[0], row[1].encode()) for row in connection.execute(rows)}


def _received(rows: list[_Row], receipt: bytes | None) -> pa.RecordBatch:
    """Return rows as deliveries; without a receipt they are browsed."""
    counts = [(row.delivery or 0) + (receipt is None) for row in rows]
    return deliveries(
        len(rows),
        body=pa.array([_NO_PAYLOAD if row.payload is None else row.payload for row in rows], pa.binary()),
        headers=[[(TYPE, row.kind)] if row.kind else [] for row in rows],
        id=[row.id for row in rows],
        count=counts,
        redelivered=[count > 1 for count in counts],
        key=[row.key or None for row in rows],
        receipt=None if receipt is None else [receipt] * len(rows),
    )


def _python_type(kind: sa.types.TypeEngine[Any]) -> type | None:
    try:
        return kind.python_type
    except NotImplementedError:
        return None
