"""The table of a transactional outbox: rows are marked as published, and stay."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Index, MetaData, String, Table, Text, Update, text, update

from babelqueue_spark.bindings.sql.tables import ID, IN_MYSQL, PAYLOAD, Int, Time, markers

PENDING, PUBLISHED = "pending", "published"
ERROR_LENGTH = 1_000


class OutboxTables:
    """The tables of one configuration: an outbox, and one for markers.

    Keys of columns are those of InitPHP's tables, which the binding knows; names are the outbox's own.
    """

    whose = "an outbox"
    in_order = True
    """A claim of a queue waits for the one before it to end."""
    failed: Table | None = None

    def __init__(self, table: str) -> None:
        self.metadata = MetaData()
        self.jobs = Table(
            table,
            self.metadata,
            Column("id", ID, primary_key=True, nullable=True),
            Column("queue", String(255), nullable=False),
            Column("body", PAYLOAD, key="payload", nullable=False),
            Column("status", String(16), nullable=False, server_default=text(f"'{PENDING}'")),
            Column("attempts", Int, nullable=False, server_default=text("0")),
            Column("error", Text),
            Column("picked_at", Time, key="reserved_at"),
            Column("created_at", Time),
            sqlite_autoincrement=True,
            **IN_MYSQL,
        )
        Index(f"{table}_pending_idx", self.jobs.c.status, self.jobs.c.queue, self.jobs.c.id)
        Index(f"{table}_claimed_idx", self.jobs.c.status, self.jobs.c.queue, self.jobs.c.reserved_at)
        self.published = markers(table, self.metadata)

    @property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        """Of claims."""
        return (self.jobs.c.id,)

    def due(self, now: str) -> tuple[ColumnElement[bool], ...]:
        """Conditions of a row that was not published."""
        del now
        return (self.jobs.c.status == PENDING,)

    def acknowledged(self) -> Update:
        """Return the statement for rows that are acknowledged."""
        return update(self.jobs).values(status=PUBLISHED, reserved_at=None, error=None)

    def row(self, mirror: dict[str, Any], queue: str, due: str, now: str) -> dict[str, Any]:
        """Return a new row."""
        del due
        return {"queue": queue, "payload": mirror["payload"], "created_at": now}
