"""One connection to a database: transactions, and errors that say what to do."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, full, missing, too_large, unreachable
from babelqueue_spark.bindings.clocks import ServerClock
from babelqueue_spark.bindings.sql.dialects import LOCK_SECONDS, LOST, SILENT, WRITES, dialect_of
from babelqueue_spark.errors import BrokerError

T = TypeVar("T")

_REPEAT_AFTER_SECONDS = (0.02, 0.1, 0.5)
_TRIES = 5

# What the database says, and what to do about it.
_ADVICE = {
    "database is locked": Advice(
        "it stayed locked longer than its busy timeout: some program keeps a write transaction open; "
        "end it, or add ?timeout=<seconds> to the URL"
    ),
    "unable to open database file|readonly database": unreachable(
        "the file cannot be opened for writing: its directory must exist on this machine, and both must "
        "be writable for this user"
    ),
    "file is not a database|malformed": Advice(
        "the file is damaged, or is no SQLite database: name another in the URL"
    ),
    "database or disk is full|No space left": full("the disk is full: make room on it"),
    r"password authentication failed|no password supplied|^\((1045|1698),": denied(
        "it refuses the login: check user and password in the URL"
    ),
    r'database ".*" does not exist|^\(1049,': missing(
        "there is no such database: create it, or name another in the URL"
    ),
    r"no pg_hba\.conf entry|^\(1044,": denied("it lets this user into no such database: grant that"),
    r"permission denied|must be owner|row-level security|^\((1142|1143),": forbidden(
        "the user lacks a permission: it needs SELECT, INSERT, UPDATE and DELETE on the tables (on "
        "PostgreSQL USAGE on their sequences too), and CREATE while tables are missing"
    ),
    r"too many clients|connection slots|^\((1040|1203|1226),": full(
        "it has no connection left: each reader and writer takes one; raise its limit, or lower numPartitions"
    ),
    r"certificate (verify failed|file)|valid client certificate|private key file|support SSL"
    r"|\[(SSL|X509): |^\(2026,|^\[Errno 2\] ": unreachable(
        "TLS failed: check the files that the URL's query names, and that the server speaks TLS"
    ),
    SILENT: unreachable(
        "it did not answer in time: check host, port and the network in between, or raise read_timeout "
        "in the URL's query"
    ),
    r"Connection refused|resolve host|not known|No route|^\((2002|2003|2005),": unreachable(
        "it cannot be reached: check host and port in the URL, that it runs, and the network in between"
    ),
    LOST: unreachable("the connection was lost: a repeated task opens another one"),
    r"^\(1153,": too_large(
        "a message is larger than the server's max_allowed_packet: raise that on the server"
    ),
    r"Data too long for column 'payload'": too_large(
        "a body is too long for the column 'payload' (InitPHP's TEXT takes 64 KiB); nothing was "
        "published: ALTER TABLE ... MODIFY payload LONGTEXT NOT NULL suits InitPHP as well"
    ),
    r"Data too long for column 'queue'|value too long for type character varying": Advice(
        "the name of the queue is too long: the tables take 255 characters"
    ),
    r"Deadlock found|deadlock detected|Lock wait timeout|lock timeout|could not serialize": Advice(
        f"others held the same rows or tables at each of {len(_REPEAT_AFTER_SECONDS) + 1} tries, for "
        f"up to {LOCK_SECONDS} s each: look for a transaction that somebody left open"
    ),
}


class OvertakenError(Exception):
    """Somebody else has written the same row in between: look again."""


class SqlClient:
    """A connection made at the first use, in the process that needs it; errors that say what to do."""

    def __init__(self, url: URL, metadata: sa.MetaData, whose: str = "InitPHP's") -> None:
        self.dialect = dialect_of(url)
        self.address = self.dialect.address(url)
        self._clock = ServerClock(self.address)
        self._url = url
        self._metadata = metadata
        self._whose = whose
        self._engine: sa.Engine | None = None
        self._longest_statement = math.inf

    def longest_statement(self) -> float:
        with self._explained():
            self._connected()
        return self._longest_statement

    def now(self) -> float:
        """Seconds since 1970, by the server's clock as it was when this connection was made.

        By this host's clock where the database has no server.
        """
        if not self.dialect.clock:
            return time.time()
        with self._explained():
            self._connected()
        return self._clock.now()

    def missing(self) -> str:
        """Return which file or tables are missing, and are created by the first use; else an empty text."""
        if self._engine is not None:
            return ""
        if not self.dialect.is_there(self._url):
            return f"the file {self._url.database}"
        engine = self.dialect.engine(self._url)
        try:
            with self._explained(), self._transaction(engine, write=False) as connection:
                found = sa.inspect(connection)
                lacking = [name for name in self._metadata.tables if not found.has_table(name)]
        finally:
            engine.dispose()
        return f"the table{'s' * (len(lacking) > 1)} {', '.join(lacking)}" if lacking else ""

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that locks nobody out."""
        with self._explained(), self._transaction(self._connected(), write=False) as connection:
            yield connection

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in a transaction, and repeat it a few times where the database preferred others."""
        with self._explained():
            return self._written(self._connected(), work)

    def compete(self, work: Callable[[sa.Connection], T], doing: str) -> T:
        """Run `work` as `write` does, and again where somebody else has written the same row in between.

        Args:
            work: what is done in a transaction; with `IntegrityError` or `OvertakenError` it is overtaken.
            doing: what the others did, for the error after the last try.
        """

        def attempt(connection: sa.Connection) -> T:
            try:
                return work(connection)
            except IntegrityError:
                raise OvertakenError from None

        for _ in range(_TRIES):
            with suppress(OvertakenError):
                return self.write(attempt)
        raise BrokerError(f"{self.address}: others {doing} at each try")

    def changed(
        self,
        connection: sa.Connection,
        change: sa.Delete | sa.Update,
        ids: list[int],
        *conditions: sa.ColumnElement[bool],
    ) -> list[int]:
        """Change the rows with these ids that meet the conditions; their ids, in any order."""
        column = change.table.c.id
        attempt = connection.begin_nested()
        if self.change(connection, change.where(*conditions), ids) == len(set(ids)):
            attempt.commit()
            return ids
        attempt.rollback()
        held: list[int] = []
        for among in self.dialect.among(column, ids):
            held += connection.scalars(sa.select(column).where(among, *conditions).with_for_update())
        self.change(connection, change, held)
        return held

    def change(self, connection: sa.Connection, change: sa.Delete | sa.Update, ids: list[int]) -> int:
        """Change the rows with these ids; how many there were."""
        conditions = self.dialect.among(change.table.c.id, ids)
        return sum(connection.execute(change.where(among)).rowcount for among in conditions)

    def payloads(self, connection: sa.Connection, table: sa.Table, ids: list[int]) -> dict[int, str | bytes]:
        """Return the payloads of those of the rows that are there."""
        columns = table.c.id, self.dialect.payload(table.c.payload)
        found: dict[int, str | bytes] = {}
        for among in self.dialect.among(table.c.id, ids):
            found.update((row[0], row[1]) for row in connection.execute(sa.select(*columns).where(among)))
        return found

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self._engine = None

    def _connected(self) -> sa.Engine:
        if self._engine is None:
            engine = self.dialect.engine(self._url)
            try:
                self._prepare(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
        return self._engine

    def _prepare(self, engine: sa.Engine) -> None:
        """Create the tables that are missing; refuse those that are something else."""
        with self._transaction(engine, write=False) as connection:
            self._clock.read(lambda: self.dialect.now(connection))
            self._longest_statement = self.dialect.longest_statement(connection)
            found = sa.inspect(connection)
            present = [table for table in self._metadata.sorted_tables if found.has_table(table.name)]
            for table in present:
                self._check(table, found.get_columns(table.name))
        if len(present) < len(self._metadata.tables):
            self._written(engine, self._metadata.create_all)

    def _check(self, table: sa.Table, columns: list[ReflectedColumn]) -> None:
        names = {column.name for column in table.columns}
        lacking = names - {column["name"] for column in columns}
        if lacking:
            raise BrokerError(
                f"{self.address}: its table '{table.name}' is not {self._whose}, for it lacks "
                f"{', '.join(sorted(lacking))}: name another by option sql.table or sql.failed_table"
            )
        zoned = [
            column["name"]
            for column in columns
            if column["name"] in names and getattr(column["type"], "timezone", False)
        ]
        if zoned:
            raise BrokerError(
                f"{self.address}: its table '{table.name}' has times with a time zone ({', '.join(zoned)}), "
                "where InitPHP writes wall clocks: ALTER TABLE ... ALTER COLUMN ... TYPE TIMESTAMP(0) USING "
                "... AT TIME ZONE with that of sql.time_zone"
            )

    def _written(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        for pause in _REPEAT_AFTER_SECONDS:
            try:
                with self._transaction(engine, write=True) as connection:
                    return work(connection)
            except DBAPIError as error:
                if not self.dialect.is_conflict(error.orig):
                    raise
            time.sleep(pause)
        with self._transaction(engine, write=True) as connection:
            return work(connection)

    @contextmanager
    def _transaction(self, engine: sa.Engine, *, write: bool) -> Iterator[sa.Connection]:
        with engine.connect().execution_options(**{WRITES: write}) as connection, connection.begin():
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            advice = self._advice(error)
            raise advice.error(f"{self.address}: {advice.text}") from None

    def _advice(self, error: Exception) -> Advice:
        said = str(error.orig if isinstance(error, DBAPIError) else error)
        for pattern, advice in _ADVICE.items():
            if re.search(pattern, said):
                return advice
        line = next(iter(said.splitlines()), type(error).__name__)
        return Advice(line.replace(self._url.password, "***") if self._url.password else line)


def key_of(text: str) -> str:
    """Return a digest that each database indexes, and that is no other's whatever the collation."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
