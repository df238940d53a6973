"""One PostgreSQL and one MariaDB for the whole test run, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    with MariaDbServer() as server:
        yield server
