from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing import ENVELOPE, SECRET, BindingContract
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.certificates import Certificates
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer


class SqlContract(BindingContract):
    """What holds of all databases."""

    binding_class = SqlBinding
    no_queues = ("x" * 256,)
    shortest_timeout = 2.0
    moments: ClassVar[Sequence[str]]
    """The strangest that a column of times takes."""

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        insert = text(
            "INSERT INTO jobs (queue, payload, attempts, available_at, created_at, urn, trace_id) "
            "VALUES (:queue, :payload, 0, :due, :moment, '', '')"
        )
        engine = create_engine(config.url)
        with engine.begin() as connection:
            due = connection.scalar(
                text("SELECT min(available_at) FROM jobs WHERE queue = :queue"), {"queue": queue}
            )
            row = {"queue": queue, "payload": ENVELOPE.decode(), "due": due}
            connection.execute(insert, [{**row, "moment": moment} for moment in self.moments])
        engine.dispose()
        return [ENVELOPE] * len(self.moments)


class TestSqlite(SqlContract):
    unreachable_error = BrokerError  # a password in the URL, which a file does not take
    moments = ("0000-01-01 00:00:00", "99999-12-31 23:59:59", "never", "\0")

    @pytest.fixture
    def config(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"sqlite:///{tmp_path}/queue.db", visibility_timeout=60)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"sqlite://:{SECRET}@/{tmp_path}/missing/queue.db")


def soon(config: BindingConfig, **query: str) -> BindingConfig:
    """Given up after a second or two."""
    given = make_url(config.url).update_query_dict({"read_timeout": "1", "connect_timeout": "2", **query})
    return replace(config, url=given.render_as_string(hide_password=False))


def ask_for_tls(client: socket.socket) -> None:
    """PostgreSQL's answer to the wish for TLS."""
    assert len(client.recv(8, socket.MSG_WAITALL)) == 8
    client.sendall(b"S")


def greet_with_tls(client: socket.socket) -> None:
    """What a MariaDB that can TLS says first, up to where the client begins it."""
    capabilities = 0x0000_0800 | 0x0008_8200  # TLS; protocol 4.1, its login, names of plugins
    greeting = b"\x0a10.11\0" + bytes(4) + b"12345678\0" + struct.pack("<H", capabilities & 0xFFFF)
    greeting += b"\x21\2\0" + struct.pack("<H", capabilities >> 16) + b"\x15" + bytes(10)
    greeting += b"123456789012\0mysql_native_password\0"
    client.sendall(struct.pack("<I", len(greeting)) + greeting)
    assert len(client.recv(36, socket.MSG_WAITALL)) == 36


def is_utf8(body: bytes) -> bool:
    return body.decode(errors="ignore").encode() == body


class TestPostgres(DefaultTimeouts, SqlContract):
    """TEXT takes what is UTF-8 without a NUL; the rest is refused, see `tests/bindings/test_sql_servers.py`."""

    moments = ("infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59")
    bodies = tuple(body for body in BindingContract.bodies if is_utf8(body) and b"\0" not in body)

    @pytest.fixture
    def config(self, postgresql_server: PostgresServer) -> BindingConfig:
        return BindingConfig(url=postgresql_server.url, visibility_timeout=60)

    def at(self, config: BindingConfig, address: str) -> BindingConfig:
        return soon(super().at(config, address))

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        url = f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/shop?sslmode=verify-full&sslrootcert={certificates.ca}"
        return certificates.context(), BindingConfig(url=url)

    def greeting(self, context: ssl.SSLContext) -> Callable[[Any], Any]:
        return lambda client: ask_for_tls(client) or super(TestPostgres, self).greeting(context)(client)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"postgresql+psycopg://user:{SECRET}@127.0.0.1:1/shop")


class TestMariaDb(DefaultTimeouts, SqlContract):
    """LONGTEXT takes what is UTF-8."""

    moments = ("0001-01-01 00:00:00", "9999-12-31 23:59:59")
    bodies = tuple(body for body in BindingContract.bodies if is_utf8(body))

    @pytest.fixture
    def config(self, mariadb_server: MariaDbServer) -> BindingConfig:
        return BindingConfig(url=mariadb_server.url, visibility_timeout=60)

    def at(self, config: BindingConfig, address: str) -> BindingConfig:
        return soon(super().at(config, address))

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        url = f"mariadb+pymysql://u:{SECRET}@127.0.0.1:1/shop?ssl_ca={certificates.ca}"
        return certificates.context(), BindingConfig(url=url)

    def greeting(self, context: ssl.SSLContext) -> Callable[[Any], Any]:
        return lambda client: greet_with_tls(client) or super(TestMariaDb, self).greeting(context)(client)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"mariadb+pymysql://user:{SECRET}@127.0.0.1:1/shop")
