"""One connection to a database: transactions, and errors that say what to do."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    create_engine,
    event,
    func,
    inspect,
    select,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from babelqueue_spark.errors import BrokerError

_WRITES = "babelqueue_writes"
_IDS_A_STATEMENT = 5_000
_SWITCH_AGAIN_SECONDS = 0.01

# What the database says, and what to do about it.
_ADVICE = (
    (
        "database is locked",
        "it stayed locked longer than its busy timeout: some program keeps a write transaction open; "
        "end it, or add ?timeout=<seconds> to the URL",
    ),
    (
        "unable to open database file|readonly database",
        "the file cannot be opened for writing: its directory must exist on this machine, and both must be "
        "writable for this user",
    ),
    (
        "file is not a database|malformed",
        "the file is damaged, or is no SQLite database: name another in the URL",
    ),
    ("database or disk is full", "the disk is full: make room on it"),
)


class Database:
    """A connection made at the first use, in the process that needs it; errors that say what to do."""

    def __init__(self, url: URL, metadata: MetaData) -> None:
        self.address = _address(url)
        self._url = url
        self._metadata = metadata
        self._engine: Engine | None = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that locks nobody out."""
        with self._explained(), self._transaction(self._connected(), write=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction; on SQLite the only one that writes, from its beginning."""
        with self._explained(), self._transaction(self._connected(), write=True) as connection:
            yield connection

    def among(self, column: Column[int], ids: list[int]) -> Iterator[ColumnElement[bool]]:
        """Conditions that together say that the column is one of `ids`; each fits into a statement."""
        if self._url.get_backend_name() == "sqlite":
            yield column.in_(select(func.json_each(json.dumps(ids)).table_valued("value").c.value))
            return
        for start in range(0, len(ids), _IDS_A_STATEMENT):
            yield column.in_(ids[start : start + _IDS_A_STATEMENT])

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._engine is not None:
            self._engine.dispose()
        self._engine = None

    def _connected(self) -> Engine:
        if self._engine is None:
            engine = create_engine(self._url)
            if engine.dialect.name == "sqlite":
                event.listen(engine, "connect", _open_sqlite)
                event.listen(engine, "begin", _begin_sqlite)
            try:
                self._prepare(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
        return self._engine

    def _prepare(self, engine: Engine) -> None:
        """Create the tables that are missing; refuse those which are something else."""
        with self._transaction(engine, write=False) as connection:
            found = inspect(connection)
            present = [table for table in self._metadata.sorted_tables if found.has_table(table.name)]
            for table in present:
                lacking = set(table.columns.keys()) - {
                    column["name"] for column in found.get_columns(table.name)
                }
                if lacking:
                    raise BrokerError(
                        f"{self.address}: its table '{table.name}' is not InitPHP's, for it lacks "
                        f"{', '.join(sorted(lacking))}: name another by option sql.table or sql.failed_table"
                    )
        if len(present) < len(self._metadata.tables):
            with self._transaction(engine, write=True) as connection:
                self._metadata.create_all(connection)

    @contextmanager
    def _transaction(self, engine: Engine, *, write: bool) -> Iterator[Connection]:
        with engine.connect().execution_options(**{_WRITES: write}) as connection, connection.begin():
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise BrokerError(f"{self.address}: {self._advice(error)}") from None

    def _advice(self, error: SQLAlchemyError) -> str:
        said = str(error.orig if isinstance(error, DBAPIError) else error)
        for pattern, advice in _ADVICE:
            if re.search(pattern, said):
                return advice
        line = next(iter(said.splitlines()), type(error).__name__)
        return line.replace(self._url.password, "***") if self._url.password else line


def _address(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"SQLite at {url.database}"
    return f"{url.get_backend_name()} at {url.host}{f':{url.port}' if url.port else ''}/{url.database}"


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


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and then writes could not wait for the lock.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options()[_WRITES] else "BEGIN")
