"""InitPHP's tables, as its PDO transport creates them, and one for the markers of `publish`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import UserDefinedType

LONGEST_QUEUE = 255
URN_LENGTH = 255
TRACE_LENGTH = 64
REASON_LENGTH = 64

IN_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_default_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_unicode_ci",
}


class Int(sa.Integer):
    """Spelled as InitPHP spells it."""


@compiles(Int)
def _spell(*_: object, **__: object) -> str:
    return "INT"


class Time(UserDefinedType[str]):
    """Goes in as text; SQLite compares it as it stands."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "DATETIME"


@compiles(Time, "postgresql")
def _spell_time(*_: object, **__: object) -> str:
    return "TIMESTAMP(0)"


ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite").with_variant(mysql.BIGINT(unsigned=True), "mysql")
# InitPHP's own TEXT ends at 64 KiB on MySQL and MariaDB; its statements are the same for both types.
PAYLOAD = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")


class Tables:
    """The tables of one configuration: `jobs`, `failed`, and `published` for markers."""

    whose = "InitPHP's"
    in_order = False

    def __init__(self, table: str, failed_table: str) -> None:
        self.metadata = sa.MetaData()
        self.jobs = sa.Table(
            table,
            self.metadata,
            *_message_columns(),
            sa.Column("available_at", Time, nullable=False),
            sa.Column("reserved_at", Time),
            sa.Column("created_at", Time, nullable=False),
            sqlite_autoincrement=True,
            **IN_MYSQL,
        )
        reserve = (self.jobs.c.queue, self.jobs.c.available_at, self.jobs.c.reserved_at)
        sa.Index(f"{table}_reserve_idx", *reserve).ddl_if(callable_=_ends_with_the_id)
        sa.Index(f"{table}_reserve_idx", *reserve, self.jobs.c.id).ddl_if(dialect="postgresql")
        self.failed = sa.Table(
            failed_table,
            self.metadata,
            *_message_columns(),
            sa.Column("reason", sa.String(REASON_LENGTH), nullable=False),
            sa.Column("failed_at", Time, nullable=False),
            sa.Column("created_at", Time, nullable=False),
            sqlite_autoincrement=True,
            **IN_MYSQL,
        )
        self.published = markers(table, self.metadata)

    @property
    def order(self) -> tuple[sa.ColumnElement[Any], ...]:
        """Of claims: the columns of the reserve index, so that they cost the same however long a queue is."""
        return (self.jobs.c.available_at, self.jobs.c.reserved_at, self.jobs.c.id)

    def due(self, now: str) -> tuple[sa.ColumnElement[bool], ...]:
        """Conditions of a row whose time has come."""
        return (self.jobs.c.available_at <= now,)

    def acknowledged(self) -> sa.Delete:
        return sa.delete(self.jobs)

    def row(self, mirror: dict[str, Any], queue: str, due: str, now: str) -> dict[str, Any]:
        """Return a new row: columns that repeat its payload, and its times."""
        return {**mirror, "queue": queue, "available_at": due, "reserved_at": None, "created_at": now}


def markers(table: str, metadata: sa.MetaData) -> sa.Table:
    """Return the table for the idempotency keys of what was published to another."""
    return sa.Table(
        f"{table}_published",
        metadata,
        sa.Column("marker", sa.String(64), primary_key=True),
        sa.Column("created_at", Time, nullable=False, index=True),
        **IN_MYSQL,
    )


def mirror(text: str | None, length: int) -> str:
    """Return as much of a text as its column takes; PostgreSQL takes no NUL."""
    return (text or "").replace("\0", "")[:length]


def _ends_with_the_id(*_: object, dialect: Any, **__: object) -> bool:
    """Return whether each index of this database ends with the id, which is the order of claims."""
    return bool(dialect.name != "postgresql")


def _message_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("id", ID, primary_key=True, nullable=True),
        sa.Column("queue", sa.String(LONGEST_QUEUE), nullable=False),
        sa.Column("urn", sa.String(URN_LENGTH), nullable=False),
        sa.Column("trace_id", sa.String(TRACE_LENGTH)),
        sa.Column("attempts", Int, nullable=False, server_default=sa.text("0")),
        sa.Column("payload", PAYLOAD, nullable=False),
    )
