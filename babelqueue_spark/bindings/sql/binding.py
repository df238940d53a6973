"""The binding of SQL tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from babelqueue_spark.bindings.batches import deliveries, envelopes_of, fitting, milliseconds
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.sql import tables, times
from babelqueue_spark.bindings.sql.base import FAILED, Database
from babelqueue_spark.bindings.sql.debezium import DebeziumBinding
from babelqueue_spark.bindings.sql.options import SqlOptions
from babelqueue_spark.bindings.sql.outbox import ERROR_LENGTH, OutboxTables, Pending
from babelqueue_spark.bindings.sql.pgmq import PgmqBinding
from babelqueue_spark.envelope import decode
from babelqueue_spark.errors import BrokerError

_OTHER_LAYOUTS: dict[str, Callable[[BindingConfig], Database]] = {
    "debezium": DebeziumBinding,
    "pgmq": PgmqBinding,
}
_LONG_AGO = "1970-01-02 00:00:00"
_BROWSE_ROWS = 5_000
_BROWSE_BYTES = 32 << 20

_HeldRow = tuple[str, int]
"""`reserved_at` and id of a claimed row; an empty text and the id of a failed one."""


class SqlBinding(Database):
    """A SQL database with InitPHP's tables or an outbox; with the layout of others, a binding of that.

    Tables are created where they are missing.
    """

    def __new__(cls, config: BindingConfig | None = None) -> Any:
        """Make the binding of the configured layout; without a configuration, what `pickle` fills."""
        make = _OTHER_LAYOUTS.get(SqlOptions.parse(config).layout) if config else None
        return make(config) if make and config else super().__new__(cls)

    def __init__(self, config: BindingConfig) -> None:
        options = SqlOptions.parse(config)
        is_outbox = options.layout == "outbox"
        self._tables: tables.Tables | OutboxTables = (
            OutboxTables(options.table) if is_outbox else tables.Tables(options.table, options.failed_table)
        )
        super().__init__(config, options, self._tables)
        if is_outbox:
            self.capabilities = replace(self.capabilities, max_delay=0)

    def backlog(self, queue: str) -> int:
        """Rows that are due and not reserved, or whose reservation lapsed: a scan of the reserve index."""
        table = self._table(queue)
        with self._client.reading() as connection:
            now = self._client.dialect.now(connection)
            ready = (*self._named(table, queue), *self._ready(queue, now))
            counted = sa.select(sa.func.count()).select_from(table).where(*ready)
            return connection.execute(counted).scalar_one()

    def advice(self, queue: str) -> str:
        """Another time zone, which PHP may have."""
        table = self._table(queue)
        return times.zone_advice(self._client, table, self._named(table, queue), self._zone)

    def oldest(self, queue: str) -> float | None:
        """When the row that is claimed next was due; of failed rows and of an outbox, when it was written."""
        table = self._table(queue)
        by_time = table is self._tables.jobs and "available_at" in table.c
        since, order = (
            (table.c.available_at, self._tables.order) if by_time else (table.c.created_at, (table.c.id,))
        )
        with self._client.reading() as connection:
            ready = (*self._named(table, queue), *self._ready(queue, self._client.dialect.now(connection)))
            first = sa.select(sa.cast(since, sa.String)).where(*ready).order_by(*order).limit(1)
            found = times.read(pa.array(connection.scalars(first).all(), pa.string()), self._zone)
        return found[0].value / 1_000_000 if len(found) and found[0].is_valid else None

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim by setting `reserved_at`, in the order of the reserve index: when due, then as published."""
        if _is_failed(queue):
            raise BrokerError(
                f"{self._client.address}: queue '{queue}' is in the failed table, which has no reservation "
                "columns: read it with spark.read, and redrive its messages"
            )
        return self._client.write(lambda connection: self._claimed(connection, queue, messages, max_bytes))

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Rows that still carry the `reserved_at` of the claim; rows of the failed table by id alone."""
        if _is_failed(queue):
            return self._settle(self._table(queue), deliveries, sa.delete)
        return self._settle(self._tables.jobs, deliveries, lambda _: self._tables.acknowledged())

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """Release by clearing `reserved_at`, so that the messages have their former places in the queue."""
        if not _is_failed(queue):
            self._settle(self._tables.jobs, deliveries, lambda jobs: sa.update(jobs).values(reserved_at=None))

    def pending_queues(self) -> list[str]:
        """Return the queues that rows of an outbox wait for."""
        jobs = self._tables.jobs
        with self._client.reading() as connection:
            waiting = sa.select(jobs.c.queue).where(*self._tables.due("")).distinct().order_by(jobs.c.queue)
            return list(connection.scalars(waiting))

    def has_untried(self, queue: str) -> bool:
        """Return whether rows of an outbox wait that nobody has tried to publish."""
        with self._client.reading() as connection:
            return self._pending(queue).has_untried(connection)

    def claim_of(self, deliveries: pa.RecordBatch) -> tuple[str, bool]:
        """Return the random name of a claim of an outbox's rows, and whether they go one by one.

        Rows that are claimed together again keep both.
        """
        jobs = self._tables.jobs
        first = sa.select(jobs.c.claim, jobs.c.singly).where(
            jobs.c.id == int(deliveries.column("id")[0].as_py())
        )
        with self._client.reading() as connection:
            name, singly = connection.execute(first).one()
        return name, bool(singly)

    def note_singly(self, deliveries: pa.RecordBatch) -> None:
        """Note that claimed rows of an outbox are published one by one."""
        self._settle(self._tables.jobs, deliveries, lambda jobs: sa.update(jobs).values(singly=1))

    def mark_failed(self, deliveries: pa.RecordBatch, error: str, *, together: bool) -> None:
        """Count an attempt at claimed rows of an outbox, and store why it failed; they stay pending.

        `together`: the next claim of the queue is of exactly these rows.
        """
        jobs = self._tables.jobs
        values = {
            "attempts": jobs.c.attempts + 1,
            "error": error[:ERROR_LENGTH],
            "reserved_at": _LONG_AGO if together else None,
        }
        self._settle(jobs, deliveries, lambda table: sa.update(table).values(values))

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Publish in one transaction; `urn`, `trace_id` and `attempts` mirror the body, however bad it is."""
        self._check_sizes(messages)
        rows = list(
            self._failed_rows(queue, messages) if _is_failed(queue) else self._job_rows(queue, messages)
        )

        def append(connection: sa.Connection) -> int:
            if rows:
                connection.execute(sa.insert(self._table(queue)), rows)
            return len(rows)

        return self._inserted(queue, messages, idempotency_key, append)

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Browse by id, up to the newest row at the start; receipts only for the failed table."""
        table, seen = self._table(queue), 0
        with self._client.reading() as connection:
            newest = connection.scalar(sa.select(sa.func.max(table.c.id))) or 0
        while seen < newest:
            rows, seen = self._browsed(queue, seen, newest)
            yield self._received(rows, [f" {row[0]}".encode() for row in rows] if _is_failed(queue) else None)

    def queues(self) -> list[str]:
        names = sa.select(self._tables.jobs.c.queue).distinct().limit(1000)
        with self._client.reading() as connection:
            return [str(name) for name in connection.scalars(names)]

    def claimable(self, queue: str) -> bool:
        """Not in the failed table, which has no reservation columns."""
        return not _is_failed(queue)

    def _table(self, queue: str) -> sa.Table:
        if not _is_failed(queue):
            return self._tables.jobs
        if self._tables.failed is None:
            raise BrokerError(f"{self._client.address}: queue '{queue}': an outbox has no failed table")
        return self._tables.failed

    def _ready(self, queue: str, seconds: float) -> tuple[sa.ColumnElement[bool], ...]:
        if _is_failed(queue):
            return ()
        jobs = self._tables.jobs
        unclaimed = sa.or_(jobs.c.reserved_at.is_(None), self._lapsed(seconds))
        return (*self._tables.due(times.written(seconds, self._zone)), unclaimed)

    def _lapsed(self, seconds: float) -> sa.ColumnElement[bool]:
        before = times.written_before(seconds, self._retry_after, self._zone)
        return self._tables.jobs.c.reserved_at <= before

    def _named(self, table: sa.Table, queue: str) -> tuple[sa.ColumnElement[bool], ...]:
        return self._client.dialect.named(table.c.queue, _original(queue))

    def _claimed(
        self, connection: sa.Connection, queue: str, messages: int, max_bytes: int
    ) -> pa.RecordBatch:
        jobs, seconds = self._tables.jobs, self._client.dialect.now(connection)
        ready = (*self._named(jobs, queue), *self._ready(queue, seconds))
        values: dict[str, Any] = {"reserved_at": times.written(seconds, self._zone)}
        if self._tables.in_order:
            following = self._pending(queue).following(
                connection, self._lapsed(seconds), self._client.dialect
            )
            if following is None:
                return deliveries(0)
            which, new = following
            ready = (*ready, which)
            values |= new
        wanted = (
            sa.select(jobs.c.id).where(*ready).order_by(*self._tables.order).with_for_update(skip_locked=True)
        )
        rows = self._taken(connection, jobs, wanted, messages, max_bytes)
        ids = [row[0] for row in rows]
        self._client.change(connection, sa.update(jobs).values(values), ids)
        return self._received(rows, [f"{values['reserved_at']} {row}".encode() for row in ids])

    def _pending(self, queue: str) -> Pending:
        jobs = self._tables.jobs
        return Pending(jobs, (*self._named(jobs, queue), *self._tables.due("")))

    def _browsed(self, queue: str, seen: int, newest: int) -> tuple[list[Any], int]:
        """Rows after `seen`, and the id up to which there are no others."""
        table, dialect = self._table(queue), self._client.dialect
        wanted = (
            dialect.named_aside(table.c.queue, _original(queue)),
            table.c.id > seen,
            table.c.id <= newest,
        )
        with self._client.reading() as connection:
            due = self._ready(queue, dialect.now(connection))
            ready = sa.select(table.c.id).where(*wanted, *due).order_by(table.c.id)
            rows = self._taken(connection, table, ready, _BROWSE_ROWS, _BROWSE_BYTES)
        there = [row for row in rows if row[1] is not None]  # others may have taken some meanwhile
        return there, rows[-1][0] if rows else newest

    def _taken(
        self, connection: sa.Connection, table: sa.Table, ids: sa.Select[Any], rows: int, max_bytes: int
    ) -> list[Any]:
        """Return the first rows of a selection: id, payload, `created_at` as stored, whether it was claimed.

        A payload above the mean that the limits allow comes by a second statement, so that what is fetched
        stays within `max_bytes`, or is one payload.
        """
        dialect = self._client.dialect
        size, payload = dialect.size(table.c.payload), dialect.payload(table.c.payload)
        small = sa.case((size <= max_bytes // rows, payload), else_=sa.null())
        reserved = table.c.reserved_at.is_not(None) if "reserved_at" in table.c else sa.null()
        redelivered = sa.case((reserved, True), else_=sa.null())  # a release leaves no trace
        created_at = sa.cast(table.c.created_at, sa.String)
        selected = ids.add_columns(size, small, created_at, redelivered).limit(rows)
        listed = connection.execute(selected).all()
        found = listed[: fitting([row[1] for row in listed], max_bytes)]
        large = [row[0] for row in found if row[2] is None]
        payloads = self._client.payloads(connection, table, large)
        return [
            (row, payloads.get(row) if body is None else body, created_at, claimed)
            for row, _, body, created_at, claimed in found
        ]

    def _received(self, rows: list[Any], receipts: list[bytes] | None) -> pa.RecordBatch:
        ids, bodies, created, redelivered = zip(*rows, strict=True) if rows else ((), (), (), ())
        return deliveries(
            len(rows),
            body=pa.array(bodies, pa.binary()),
            id=pa.array(ids, pa.int64()),
            redelivered=pa.array(redelivered, pa.bool_()),
            enqueued_at=milliseconds(times.read(pa.array(created, pa.string()), self._zone)).to_pylist(),
            receipt=receipts,
        )

    def _settle(
        self, table: sa.Table, deliveries: pa.RecordBatch, change: Callable[[sa.Table], sa.Delete | sa.Update]
    ) -> pa.BooleanArray:
        """Change the rows whose claims are still ours; true for those."""
        claims = [_held_row(receipt) for receipt in deliveries.column("receipt").to_pylist()]

        def settle(connection: sa.Connection) -> set[_HeldRow]:
            held: set[_HeldRow] = set()
            for reserved_at, ids in _by_time(claims).items():
                ours = [self._client.dialect.held(table.c.reserved_at, reserved_at)] if reserved_at else []
                changed = self._client.changed(connection, change(table), ids, *ours)
                held.update((reserved_at, row) for row in changed)
            return held

        held = self._client.write(settle)
        return pa.array([claim in held for claim in claims], pa.bool_())

    def _job_rows(self, queue: str, messages: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        seconds = self._client.now()
        now = times.written(seconds, self._zone)
        delays = pc.fill_null(messages.column("delay"), 0).to_pylist()
        due = {delay: times.written_due(seconds, delay, self._zone) for delay in set(delays)}
        bodies = messages.column("body")
        for mirror, delay in zip(self._mirrors(bodies, envelopes_of(messages)), delays, strict=True):
            yield self._tables.row(mirror, queue, due[delay], now)

    def _failed_rows(self, queue: str, messages: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        now = times.written(self._client.now(), self._zone)
        bodies = messages.column("body")
        envelopes = decode(bodies)
        reasons = pc.struct_field(envelopes.column("dead_letter"), "reason").to_pylist()
        for mirror, reason in zip(self._mirrors(bodies, envelopes), reasons, strict=True):
            known = tables.mirror(reason or "failed", tables.REASON_LENGTH)
            mirror.update(queue=_original(queue), reason=known, failed_at=now, created_at=now)
            yield mirror

    def _mirrors(self, bodies: pa.BinaryArray, envelopes: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Payloads, and the columns which repeat what stands in them."""
        columns = (bodies, *(envelopes.column(name) for name in ("job", "trace_id", "attempts")))
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        for row, (body, job, trace_id, attempts) in enumerate(values):
            yield {
                "urn": tables.mirror(job, tables.URN_LENGTH),
                "trace_id": tables.mirror(trace_id, tables.TRACE_LENGTH)
                if trace_id and trace_id.strip()
                else None,
                "attempts": attempts or 0,
                "payload": self._stored(body, row, len(bodies)),
            }


def _is_failed(queue: str) -> bool:
    return queue.startswith(FAILED)


def _original(queue: str) -> str:
    return queue.removeprefix(FAILED)


def _held_row(receipt: bytes) -> _HeldRow:
    reserved_at, _, row = receipt.decode().rpartition(" ")
    return reserved_at, int(row)


def _by_time(claims: list[_HeldRow]) -> dict[str, list[int]]:
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for reserved_at, row in claims:
        grouped[reserved_at].append(row)
    return grouped
