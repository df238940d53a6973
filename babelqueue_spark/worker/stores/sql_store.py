"""Handled messages in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import mysql

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sql.client import OvertakenError, SqlClient, key_of
from babelqueue_spark.bindings.sql.options import SqlOptions
from babelqueue_spark.secrets import resolve
from babelqueue_spark.worker.stores.idempotency import IdempotencyStore, Record

T = TypeVar("T")

_AT_ONCE = 500
"""Ids in a statement: databases bound its parameters."""


class SqlStore(IdempotencyStore):
    """A table, made where it is missing: a row a message, its key a digest of the `meta.id`.

    Args:
        url: any SQLAlchemy URL, or `env:NAME`, `file:/path`.
        table: its name.
        keep: seconds for which a handled message is remembered.
        lease: seconds after which the claim of a worker that died ends.
    """

    def __init__(
        self, url: str, *, table: str = "babelqueue_handled", keep: int = 86_400, lease: int = 300
    ) -> None:
        self._url = url
        self._name = table
        self._keep = keep
        self.lease = lease
        self._open: tuple[SqlClient, Table] | None = None

    def claim(self, ids: Sequence[str], owner: str) -> list[Record]:
        """Claim in one transaction, which also drops rows whose time is over."""

        def work(connection: Connection, table: Table) -> list[Record]:
            now = self._milliseconds()
            connection.execute(delete(table).where(table.c.expires_at <= now))
            keys = {key_of(message_id): message_id for message_id in ids}
            known = {row.id: row for row in connection.execute(select(table).where(table.c.id.in_(keys)))}
            lease = {"owner": owner, "handled": False, "expires_at": now + self.lease * 1000, "result": b""}
            new = [{"id": key, **lease} for key in keys if key not in known]
            if new:
                connection.execute(insert(table), new)
            ours = [key for key, row in known.items() if row.owner == owner and not row.handled]
            if ours:
                still = (table.c.id.in_(ours), *_claimed_by(table, owner))
                if connection.execute(update(table).where(*still).values(**lease)).rowcount < len(ours):
                    raise OvertakenError
            return [_record(known.get(key_of(message_id)), owner) for message_id in ids]

        return self._written(work)

    def remember(self, message_id: str, owner: str, result: bytes = b"") -> None:
        def work(connection: Connection, table: Table) -> None:
            key = key_of(message_id)
            row = {
                "owner": owner,
                "handled": True,
                "expires_at": self._milliseconds() + self._keep * 1000,
                "result": result,
            }
            if not connection.execute(update(table).where(table.c.id == key).values(**row)).rowcount:
                connection.execute(insert(table).values(id=key, **row))

        self._written(work)

    def release(self, ids: Sequence[str], owner: str) -> None:
        self._delete(ids, lambda table: _claimed_by(table, owner))

    def forget(self, ids: Sequence[str]) -> None:
        self._delete(ids, lambda _: ())

    def close(self) -> None:
        if self._open is not None:
            self._open[0].close()
        self._open = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def _delete(
        self, ids: Sequence[str], conditions: Callable[[Table], Iterable[ColumnElement[bool]]]
    ) -> None:
        def work(connection: Connection, table: Table) -> None:
            for first in range(0, len(ids), _AT_ONCE):
                keys = map(key_of, ids[first : first + _AT_ONCE])
                connection.execute(delete(table).where(table.c.id.in_(keys), *conditions(table)))

        self._written(work)

    def _written(self, work: Callable[[Connection, Table], T]) -> T:
        client, table = self._connected()
        doing = f"wrote the same rows of '{table.name}'"
        return client.compete(lambda connection: work(connection, table), doing)

    def _milliseconds(self) -> int:
        client, _ = self._connected()
        return int(client.now() * 1000)

    def _connected(self) -> tuple[SqlClient, Table]:
        if self._open is None:
            options = SqlOptions.parse(BindingConfig(url=resolve(self._url, "url")))
            table = _table(self._name)
            self._open = SqlClient(options.url, table.metadata), table
        return self._open


def _table(name: str) -> Table:
    return Table(
        name,
        MetaData(),
        Column("id", String(64), primary_key=True),
        Column("owner", String(32), nullable=False),
        Column("handled", Boolean, nullable=False),
        Column("expires_at", BigInteger, nullable=False, index=True),
        Column("result", LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False),
    )


def _claimed_by(table: Table, owner: str) -> tuple[ColumnElement[bool], ...]:
    return table.c.owner == owner, table.c.handled.is_(False)


def _record(row: Any, owner: str) -> Record:
    if row is None:
        return Record("granted")
    if not row.handled:
        return Record("granted" if row.owner == owner else "held")
    return Record("handled", ours=row.owner == owner, result=row.result if row.owner == owner else b"")
