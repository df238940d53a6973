"""What differs between SQLite, PostgreSQL and MariaDB (or MySQL): sessions, expressions, conflicts."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import URL

WRITES = "babelqueue_writes"
LOCK_SECONDS = 10
_IDS_A_STATEMENT = 5_000
_SWITCH_AGAIN_SECONDS = 0.01

Condition = sa.ColumnElement[bool]


LOST = (
    r"closed the connection|connection is (closed|lost)|terminating connection|starting up|shutting down|"
    r"SSL (SYSCALL|connection has been closed)|Connection reset|Lost connection|"
    r"^\((2006|2013|2055|4031|1927|1053|0),"
)
SILENT = r"timeout expired|timed out|server is silent"


_ESCAPED = (b"\0", b"\n", b"\r", b"\x1a", b'"', b"'", b"\\")
"""What a backslash precedes in a literal of MariaDB's."""


def is_lost(text: str) -> bool:
    """Return whether a driver's error says that a connection ended, and not that nothing came."""
    return bool(re.search(LOST, text)) and not re.search(SILENT, text)


class Dialect:
    """A database server of any kind; what it does otherwise is in the subclasses."""

    session: ClassVar[tuple[str, ...]] = ()
    """What each new connection begins with."""
    conflicts: ClassVar[frozenset[str]] = frozenset()
    """Errors by which others were preferred: the same transaction may succeed when it is repeated."""
    clock: ClassVar[str] = ""
    """Asks for the server's microseconds since 1970; empty where the host's clock has to do."""
    statement_limit: ClassVar[str] = ""
    """Asks for the bytes of the longest statement; empty where there is no bound in reach of a message."""

    def __init__(self, label: str) -> None:
        self.label = label

    def address(self, url: URL) -> str:
        """Return where the database is, without the password."""
        return f"{self.label} at {url.host}{f':{url.port}' if url.port else ''}/{url.database or ''}"

    def engine(self, url: URL) -> sa.Engine:
        """Make connections that are checked before use: a server may have been restarted."""
        engine = sa.create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED")
        sa.event.listen(engine, "do_connect", self._connect)
        sa.event.listen(engine, "connect", self._begin_session)
        return engine

    def is_there(self, url: URL) -> bool:
        """Return whether there is something to connect to; False only where connecting would create it."""
        del url
        return True

    def now(self, connection: sa.Connection) -> float:
        """Seconds since 1970, by the clock that all who share the database have in common."""
        if not self.clock:
            return time.time()
        return int(connection.exec_driver_sql(self.clock).scalar_one()) / 1_000_000

    def among(self, column: sa.ColumnElement[int], ids: list[int]) -> Iterator[Condition]:
        """Conditions that together say that the column is one of `ids`; each fits into a statement.

        None at all without ids.
        """
        for start in range(0, len(ids), _IDS_A_STATEMENT):
            yield column.in_(ids[start : start + _IDS_A_STATEMENT])

    def named(self, column: sa.ColumnElement[str], queue: str) -> tuple[Condition, ...]:
        """Conditions that say which queue, for the reserve index."""
        return (column == queue,)

    def named_aside(self, column: sa.ColumnElement[str], queue: str) -> Condition:
        """Return the same, for no index: an expression in place of the column."""
        return column.concat("") == queue

    def payload(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
        """Return the payload as the driver gives it fastest, unchanged: bytes, or text."""
        return sa.cast(column, sa.LargeBinary)

    def size(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[int]:
        """Bytes of a payload."""
        return sa.func.octet_length(column)

    def stored(self, body: bytes) -> str | bytes:
        """Return what goes into the payload column; `ValueError` with the reason where it cannot."""
        try:
            return body.decode()
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8") from None

    def held(self, reserved_at: sa.ColumnElement[str], since: str) -> Condition:
        """Return whether a row carries the time of a claim."""
        return reserved_at == since

    def longest_statement(self, connection: sa.Connection) -> float:
        """Bytes of the longest statement that the server takes."""
        if not self.statement_limit:
            return math.inf
        return float(connection.exec_driver_sql(self.statement_limit).scalar_one())

    def literal_size(self, body: bytes) -> int:
        """Bytes of a body in a statement."""
        return len(body)

    def is_conflict(self, error: Any) -> bool:
        """Return whether a driver's error is one of `conflicts`."""
        codes = {getattr(error, "sqlstate", None), *error.args[:1]}
        return not self.conflicts.isdisjoint(map(str, codes))

    def open(self, driver: Any, *args: Any, **parameters: Any) -> Any:
        """Return a connection of the driver's, which SQLAlchemy knows as `driver`."""
        return driver.loaded_dbapi.connect(*args, **parameters)

    def _connect(self, driver: Any, _: object, args: list[Any], parameters: dict[str, Any]) -> Any:
        """Open a connection; again, once, where it ends before anything was asked of it."""
        try:
            return self.open(driver, *args, **parameters)
        except driver.loaded_dbapi.OperationalError as error:
            if not is_lost(str(error)):
                raise
            return self.open(driver, *args, **parameters)

    def _begin_session(self, connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for statement in self.session:
            cursor.execute(statement)
        cursor.close()
        connection.commit()


class Sqlite(Dialect):
    """A file, in WAL mode; its transactions begin where we say."""

    def address(self, url: URL) -> str:
        return f"{self.label} at {url.database}"

    def is_there(self, url: URL) -> bool:
        file = Path(str(url.database).removeprefix("file:"))
        return file.exists() or not file.parent.is_dir()

    def engine(self, url: URL) -> sa.Engine:
        engine = sa.create_engine(url)
        sa.event.listen(engine, "connect", _open_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def size(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[int]:
        return sa.func.length(sa.cast(column, sa.LargeBinary))

    def among(self, column: sa.ColumnElement[int], ids: list[int]) -> Iterator[Condition]:
        if ids:
            yield column.in_(sa.select(sa.func.json_each(json.dumps(ids)).table_valued("value").c.value))

    def stored(self, body: bytes) -> str | bytes:
        try:
            return super().stored(body)
        except ValueError:
            return body


class Postgres(Dialect):
    """PostgreSQL."""

    session = (
        "SET client_encoding = 'UTF8'",
        "SET datestyle = ISO",
        f"SET lock_timeout = '{LOCK_SECONDS}s'",
        # Claims follow the reserve index and settle by id, whatever the statistics of a table that fills
        # and empties all day make of it.
        "SET enable_sort = off",
        "SET enable_seqscan = off",
        "SET enable_bitmapscan = off",
        "SET max_parallel_workers_per_gather = 0",
        "SET jit = off",
    )
    # Serialization, deadlock, lock timeout; a table or one of its names that another process created.
    conflicts = frozenset({"40001", "40P01", "55P03", "42P07", "23505"})
    clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

    def open(self, driver: Any, *args: Any, **parameters: Any) -> Any:
        if driver.driver != "psycopg":
            return super().open(driver, *args, **parameters)
        from babelqueue_spark.bindings.sql.postgresql import BoundedConnection  # psycopg may be missing

        return BoundedConnection.opened(*args, **parameters)

    def among(self, column: sa.ColumnElement[int], ids: list[int]) -> Iterator[Condition]:
        if ids:
            yield column == sa.any_(sa.literal(ids, sa.ARRAY(sa.BigInteger)))

    def payload(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
        return column

    def held(self, reserved_at: sa.ColumnElement[str], since: str) -> Condition:
        # Not the column itself: without statistics, the reserve index would seem better than the ids.
        return sa.func.date_trunc("second", reserved_at, type_=reserved_at.type) == since

    def stored(self, body: bytes) -> str | bytes:
        if b"\0" in body:
            raise ValueError("holds a NUL byte")
        return super().stored(body)


class MySql(Dialect):
    """MariaDB and MySQL, whose text compares without regard to case, accents and trailing spaces."""

    session = (
        "SET SESSION sql_mode = CONCAT_WS(',', @@sql_mode, 'STRICT_ALL_TABLES')",
        f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}",
    )
    # Deadlock, lock timeout, changed since read; a table or index that another process created.
    conflicts = frozenset({"1213", "1205", "1020", "1050", "1061"})
    # unix_timestamp() of a fraction would go through the session's zone, where one hour comes twice.
    clock = "SELECT timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))"
    statement_limit = "SELECT @@max_allowed_packet"

    def engine(self, url: URL) -> sa.Engine:
        return super().engine(url.set(drivername=url.drivername.replace("mariadb", "mysql", 1)))

    def among(self, column: sa.ColumnElement[int], ids: list[int]) -> Iterator[Condition]:
        # Written out: as parameters they cost more than the rows.
        for start in range(0, len(ids), _IDS_A_STATEMENT):
            yield column.in_([sa.literal_column(",".join(map(str, ids[start : start + _IDS_A_STATEMENT])))])

    def literal_size(self, body: bytes) -> int:
        return len(body) + sum(body.count(escaped) for escaped in _ESCAPED)

    def named(self, column: sa.ColumnElement[str], queue: str) -> tuple[Condition, ...]:
        return (column == queue, self.named_aside(column, queue))

    def named_aside(self, column: sa.ColumnElement[str], queue: str) -> Condition:
        return sa.cast(column, sa.LargeBinary) == queue.encode()


def dialect_of(url: URL) -> Dialect:
    """Return the dialect of a connection string; of any other database, what they have in common."""
    kinds: dict[str, tuple[type[Dialect], str]] = {
        "sqlite": (Sqlite, "SQLite"),
        "postgresql": (Postgres, "PostgreSQL"),
        "mysql": (MySql, "MySQL"),
        "mariadb": (MySql, "MariaDB"),
    }
    backend = url.get_backend_name()
    kind, label = kinds.get(backend, (Dialect, backend))
    return kind(label)


def _open_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where sqlite3 does
    connection.execute("PRAGMA synchronous=FULL")
    _switch_to_wal(connection)


def _switch_to_wal(connection: Any) -> None:
    """Wait for others who switch as well: SQLite's own busy timeout does not cover it."""
    deadline = time.monotonic() + connection.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_SWITCH_AGAIN_SECONDS)
        else:
            return


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and then writes could not wait for the lock.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options()[WRITES] else "BEGIN")
