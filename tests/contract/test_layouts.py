"""SQL tables of other products; how their client bears silence is tested with our own tables."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import create_engine, make_url, text

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sql.debezium import DebeziumBinding
from babelqueue_spark.bindings.sql.pgmq import PgmqBinding
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing import ENVELOPE, SECRET, BindingContract
from tests.contract import test_sql
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer


class DebeziumContract(BindingContract):
    binding_class = DebeziumBinding
    no_queues = ("x" * 256,)
    shortest_timeout = 2.0
    unreachable_error = BrokerError

    @pytest.fixture
    def config(self, url: str) -> BindingConfig:
        return BindingConfig(url=url, visibility_timeout=60, client_options={"layout": "debezium"})

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> BindingConfig:
        url = f"sqlite://:{SECRET}@/{tmp_path}/missing/queue.db"
        return BindingConfig(url=url, client_options={"layout": "debezium"})

    @pytest.fixture
    def proxy(self) -> None:
        """None: the client is that of our own tables."""

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        engine = create_engine(config.url)
        insert = text(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (:id, :queue, :word, :word, :body)"
        )
        words, bodies = ("", " ", "'\"\\", "注" * 255, "\r\n"), (ENVELOPE, None)
        rows = [{"word": word, "body": body and body.decode()} for word in words for body in bodies]
        with engine.begin() as connection:
            for row in rows:
                connection.execute(insert, {"id": str(uuid.uuid4()), "queue": queue, **row})
        engine.dispose()
        return [(row["body"] or "null").encode() for row in rows]


class TestDebeziumInSqlite(DebeziumContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/queue.db"


class TestDebeziumInPostgres(DebeziumContract):
    bodies = test_sql.TestPostgres.bodies

    @pytest.fixture
    def url(self, postgresql_server: PostgresServer) -> str:
        return postgresql_server.url


@pytest.mark.nightly
class TestDebeziumInMariaDb(DebeziumContract):
    bodies = test_sql.TestMariaDb.bodies

    @pytest.fixture
    def url(self, mariadb_server: MariaDbServer) -> str:
        return mariadb_server.url


class TestPgmq(BindingContract):
    """A body that is JSON comes back as jsonb has it, any other byte for byte."""

    binding_class = PgmqBinding
    creates_queues = True
    shortest_timeout = 2.0
    queue_suffixes = tuple(suffix for suffix in BindingContract.queue_suffixes if "'" not in suffix)
    no_queues = ("Orders", "x" * 48, "ß" * 24, "it's", "a--b", "a;b", "a$b")

    @pytest.fixture
    def config(self, pgmq_url: str) -> BindingConfig:
        return BindingConfig(url=pgmq_url, visibility_timeout=60, client_options={"layout": "pgmq"})

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        url = f"postgresql+psycopg://user:{SECRET}@127.0.0.1:1/shop"
        return BindingConfig(url=url, client_options={"layout": "pgmq"})

    @pytest.fixture
    def proxy(self) -> None:
        """None: the client is that of our own tables."""

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        url = make_url(config.url).set(drivername="postgresql").render_as_string(hide_password=False)
        headers = ["null", "[]", "7", '"x"', '{"": null, "x-pgmq-group": 1e400, "deep": {"a": [1, null]}}']
        headers += ['{"babelqueue-body": "base64"}', '{"babelqueue-body": 64}']
        times = [("infinity", "-infinity"), ("4713-01-01 BC", "4713-01-01 BC"), ("294276-12-31", "epoch")]
        table = psycopg.sql.Identifier("pgmq", f"q_{queue}")
        insert = psycopg.sql.SQL(
            "INSERT INTO {} (read_ct, enqueued_at, vt, message, headers) VALUES (%s, %s, %s, %s, %s)"
        ).format(table)
        rows: list[tuple[Any, ...]] = [(0, "now", "now", ENVELOPE.decode(), each) for each in headers]
        rows += [(2**31 - 2, sent, due, ENVELOPE.decode(), None) for sent, due in times]
        rows += [(0, "now", "now", None, None)]
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            cursor.executemany(insert, rows)
        return [ENVELOPE] * (len(rows) - 1) + [b"null"]

    def _assert_bodies(self, batch: pa.RecordBatch, expected: Sequence[bytes]) -> None:
        assert list(map(canonical, batch.column("body").to_pylist())) == list(map(canonical, expected))


def canonical(body: bytes) -> bytes:
    try:
        return json.dumps(json.loads(body), sort_keys=True).encode()
    except ValueError:
        return body
