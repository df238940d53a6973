"""The table of a transactional outbox: rows are marked as published, and stay."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from babelqueue_spark.bindings.sql.dialects import Dialect
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
    failed: sa.Table | None = None

    def __init__(self, table: str) -> None:
        self.metadata = sa.MetaData()
        self.jobs = sa.Table(
            table,
            self.metadata,
            sa.Column("id", ID, primary_key=True, nullable=True),
            sa.Column("queue", sa.String(255), nullable=False),
            sa.Column("body", PAYLOAD, key="payload", nullable=False),
            sa.Column("status", sa.String(16), nullable=False, server_default=sa.text(f"'{PENDING}'")),
            sa.Column("attempts", Int, nullable=False, server_default=sa.text("0")),
            sa.Column("error", sa.Text),
            sa.Column("picked_at", Time, key="reserved_at"),
            sa.Column("claim", sa.String(32)),
            sa.Column("singly", Int, nullable=False, server_default=sa.text("0")),
            sa.Column("created_at", Time),
            sqlite_autoincrement=True,
            **IN_MYSQL,
        )
        sa.Index(f"{table}_pending_idx", self.jobs.c.status, self.jobs.c.queue, self.jobs.c.id)
        sa.Index(f"{table}_claimed_idx", self.jobs.c.status, self.jobs.c.queue, self.jobs.c.reserved_at)
        self.published = markers(table, self.metadata)

    @property
    def order(self) -> tuple[sa.ColumnElement[Any], ...]:
        return (self.jobs.c.id,)

    def due(self, now: str) -> tuple[sa.ColumnElement[bool], ...]:
        del now
        return (self.jobs.c.status == PENDING,)

    def acknowledged(self) -> sa.Update:
        return sa.update(self.jobs).values(status=PUBLISHED, reserved_at=None, claim=None, error=None)

    def row(self, mirror: dict[str, Any], queue: str, due: str, now: str) -> dict[str, Any]:
        del due
        return {"queue": queue, "payload": mirror["payload"], "created_at": now}


@dataclass(frozen=True)
class Pending:
    """The rows of one queue of an outbox that are not published."""

    jobs: sa.Table
    conditions: tuple[sa.ColumnElement[bool], ...]

    def has_untried(self, connection: sa.Connection) -> bool:
        """Return whether some wait that nobody has tried to publish."""
        return connection.execute(self._first(*self._untried())).first() is not None

    def following(
        self, connection: sa.Connection, lapsed: sa.ColumnElement[bool], dialect: Dialect
    ) -> tuple[sa.ColumnElement[bool], dict[str, Any]] | None:
        """Which rows are claimed next, and what is new in them: where a claim lapsed, its rows keep its name.

        Rows that were refused come after all others. None while another claim is held. The first row is
        locked: claims of a queue follow one another.
        """
        claim, claimed_at = self.jobs.c.claim, self.jobs.c.reserved_at
        if connection.execute(self._first().with_for_update()).first() is None:
            return None
        new_claim = {"claim": uuid.uuid4().hex, "singly": 0}
        claimed = self._first(claimed_at.is_not(None)).with_only_columns(
            sa.cast(claimed_at, sa.String), sa.func.coalesce(lapsed, False), claim
        )
        found = connection.execute(claimed).first()
        if found is not None:
            moment, has_lapsed, name = found
            rows = sa.and_(dialect.held(claimed_at, moment), claim == name)
            return (rows, {} if name else new_claim) if has_lapsed else None
        if self.has_untried(connection):
            return sa.and_(*self._untried()), new_claim
        return claimed_at.is_(None), new_claim

    def _first(self, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
        jobs = self.jobs
        return sa.select(jobs.c.id).where(*self.conditions, *conditions).order_by(jobs.c.id).limit(1)

    def _untried(self) -> tuple[sa.ColumnElement[bool], ...]:
        return (self.jobs.c.reserved_at.is_(None), self.jobs.c.attempts == 0)
