"""Outboxes for tests: rows stored as a service does, and asked for without the connector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, text

from babelqueue_spark.exchange import Outbox
from tests.streams import envelope


def made(outbox: Outbox) -> None:
    """Create the table."""
    with outbox._binding() as binding:
        binding.backlog("orders")


@contextmanager
def transaction(outbox: Outbox) -> Iterator[Connection]:
    with outbox._binding() as binding:
        engine = binding._client.dialect.engine(binding._client._url)
    engine = create_engine(engine.url.set(query={}))
    with closing(engine.connect()) as connection, connection.begin():
        yield connection
    engine.dispose()


def store(outbox: Outbox, numbers: Iterable[int], queues: list[str]) -> None:
    """Insert rows as a service does, beside its own data."""
    made(outbox)
    insert = text(f"INSERT INTO {outbox.table} (queue, body) VALUES (:queue, :body)")
    rows = [{"queue": queues[number % len(queues)], "body": envelope(number).decode()} for number in numbers]
    with transaction(outbox) as connection:
        connection.execute(insert, rows)


def columns(outbox: Outbox, names: str) -> list[tuple[Any, ...]]:
    with transaction(outbox) as connection:
        found = connection.execute(text(f"SELECT {names} FROM {outbox.table} ORDER BY id"))
        return [tuple(row) for row in found]
