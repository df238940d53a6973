from pathlib import Path

import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing import SECRET, BindingContract
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer


class TestSqlite(BindingContract):
    binding_class = SqlBinding
    unreachable_error = BrokerError  # a password in the URL, which a file does not take
    shortest_timeout = 2.0

    @pytest.fixture
    def config(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"sqlite:///{tmp_path}/queue.db", visibility_timeout=60)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"sqlite://:{SECRET}@/{tmp_path}/missing/queue.db")


def is_utf8(body: bytes) -> bool:
    return body.decode(errors="ignore").encode() == body


class TestPostgres(BindingContract):
    """TEXT takes what is UTF-8 without a NUL; the rest is refused, see `tests/bindings/test_sql_servers.py`."""

    binding_class = SqlBinding
    shortest_timeout = 2.0
    bodies = tuple(body for body in BindingContract.bodies if is_utf8(body) and b"\0" not in body)

    @pytest.fixture
    def config(self, postgresql_server: PostgresServer) -> BindingConfig:
        return BindingConfig(url=postgresql_server.url, visibility_timeout=60)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"postgresql+psycopg://user:{SECRET}@127.0.0.1:1/shop")


class TestMariaDb(BindingContract):
    """LONGTEXT takes what is UTF-8."""

    binding_class = SqlBinding
    shortest_timeout = 2.0
    bodies = tuple(body for body in BindingContract.bodies if is_utf8(body))

    @pytest.fixture
    def config(self, mariadb_server: MariaDbServer) -> BindingConfig:
        return BindingConfig(url=mariadb_server.url, visibility_timeout=60)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"mariadb+pymysql://user:{SECRET}@127.0.0.1:1/shop")
