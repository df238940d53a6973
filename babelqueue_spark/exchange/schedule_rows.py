"""The rows of a schedule: its jobs, what releases have claimed of them, and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

WAITING, FAILED = 0, -1
STORED = ("job_id", "due_at", "queue", "body", "headers", "key")
"""What a job brings with it."""
_IN_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_default_charset": "utf8mb4"}
_ID = BigInteger().with_variant(Integer(), "sqlite")
_BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

State = Literal["waiting", "claimed", "failed"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A message that waits for its time.

    Attributes:
        job_id: its name in the schedule.
        due_at: microseconds since 1970.
        queue: where it goes; None = where the release says.
        body: an envelope, whose id and `created_at` a release replaces.
        headers: as a JSON object; None where it has none.
        key: partition key, group or session.
        number: its row.
        scheduled_at: when a job of this id was first scheduled, in microseconds since 1970.
        generation: how often it was scheduled since then.
        state: `claimed` while a release publishes it, `failed` where the broker cannot carry it.
        error: why it failed.
        singly: whether a release publishes it alone.
    """

    job_id: str
    due_at: int
    queue: str | None
    body: bytes
    headers: bytes | None
    key: str | None
    number: int = 0
    scheduled_at: int = 0
    generation: int = 1
    state: State = "waiting"
    error: str | None = None
    singly: bool = False


@dataclass(frozen=True)
class Chunk:
    """Jobs that one release has claimed, and which are published together.

    Attributes:
        number: its row.
        name: of its idempotency keys; no other chunk's of any schedule.
        writer: of its idempotency keys.
        claimed_at: microseconds since 1970, of the first claim.
        due_by: what was due later goes to the broker with a delay.
        taken_at: when this release claimed it.
        leased_until: when another release may take it over, in microseconds since 1970.
    """

    number: int
    name: str
    writer: str
    claimed_at: int
    due_by: int
    taken_at: int
    leased_until: int


def jobs_table(name: str, metadata: MetaData) -> Table:
    """Describe the table of jobs."""
    table = Table(
        name,
        metadata,
        Column("id", _ID, primary_key=True),
        Column("id_key", String(64), nullable=False, unique=True),
        Column("job_id", _TEXT, nullable=False),
        Column("scheduled_at", BigInteger, nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("due_at", BigInteger, nullable=False),
        Column("chunk", BigInteger, nullable=False),
        Column("queue", _TEXT),
        Column("body", _BYTES, nullable=False),
        Column("headers", _BYTES),
        Column("key", _TEXT),
        Column("error", _TEXT),
        Column("singly", Integer, nullable=False),
        sqlite_autoincrement=True,
        **_IN_MYSQL,
    )
    Index(f"{name}_due_idx", table.c.chunk, table.c.due_at, table.c.id)
    return table


def chunks_table(name: str, metadata: MetaData) -> Table:
    """Describe the table of what releases have claimed."""
    return Table(
        name,
        metadata,
        Column("id", _ID, primary_key=True),
        Column("name", String(32), nullable=False),
        Column("writer", String(32), nullable=False),
        Column("claimed_at", BigInteger, nullable=False),
        Column("due_by", BigInteger, nullable=False),
        Column("leased_until", BigInteger, nullable=False),
        sqlite_autoincrement=True,
        **_IN_MYSQL,
    )


def puts_table(name: str, metadata: MetaData) -> Table:
    """Describe the table of what workers have put."""
    table = Table(
        name,
        metadata,
        Column("name", String(64), primary_key=True),
        Column("put_at", BigInteger, nullable=False),
        **_IN_MYSQL,
    )
    Index(f"{name}_put_idx", table.c.put_at)
    return table


def row_of(job: Job) -> dict[str, Any]:
    """Return the columns of a job that waits."""
    return {**{name: getattr(job, name) for name in STORED}, "chunk": WAITING, "error": None, "singly": 0}


def job_of(row: Any) -> Job:
    """Return the job of a row."""
    return Job(
        **{name: getattr(row, name) for name in (*STORED, "scheduled_at", "generation", "error")},
        number=row.id,
        state="claimed" if row.chunk > 0 else "failed" if row.chunk == FAILED else "waiting",
        singly=bool(row.singly),
    )
