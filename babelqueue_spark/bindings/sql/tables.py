"""InitPHP's tables, as its PDO transport creates them, and one for the markers of `publish`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Index, Integer, MetaData, String, Table, Text, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import UserDefinedType

URN_LENGTH = 255
TRACE_LENGTH = 64
REASON_LENGTH = 64


class _Int(Integer):
    """Spelled as InitPHP spells it."""


@compiles(_Int)
def _spell(*_: object, **__: object) -> str:
    return "INT"


class _SqliteTime(UserDefinedType[str]):
    """Text, which SQLite compares as it stands."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """As InitPHP spells it."""
        return "DATETIME"


_TIME = DateTime().with_variant(_SqliteTime(), "sqlite")


class Tables:
    """The tables of one configuration: `jobs`, `failed`, and `published` for markers."""

    def __init__(self, table: str, failed_table: str) -> None:
        self.metadata = MetaData()
        self.jobs = Table(
            table,
            self.metadata,
            *_message_columns(),
            Column("available_at", _TIME, nullable=False),
            Column("reserved_at", _TIME),
            Column("created_at", _TIME, nullable=False),
            sqlite_autoincrement=True,
        )
        Index(f"{table}_reserve_idx", self.jobs.c.queue, self.jobs.c.available_at, self.jobs.c.reserved_at)
        self.failed = Table(
            failed_table,
            self.metadata,
            *_message_columns(),
            Column("reason", String(REASON_LENGTH), nullable=False),
            Column("failed_at", _TIME, nullable=False),
            Column("created_at", _TIME, nullable=False),
            sqlite_autoincrement=True,
        )
        self.published = Table(
            f"{table}_published",
            self.metadata,
            Column("marker", String(64), primary_key=True),
            Column("created_at", _TIME, nullable=False, index=True),
        )


def _message_columns() -> tuple[Column[Any], ...]:
    return (
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, nullable=True),
        Column("queue", String(255), nullable=False),
        Column("urn", String(URN_LENGTH), nullable=False),
        Column("trace_id", String(TRACE_LENGTH)),
        Column("attempts", _Int, nullable=False, server_default=text("0")),
        Column("payload", Text, nullable=False),
    )
