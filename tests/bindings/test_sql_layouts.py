"""What the bindings of Debezium's outbox and of pgmq do beside their owners: services, Debezium, pgmq's clients."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.registry import create_binding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.errors import BrokerError, OptionError
from babelqueue_spark.testing import (
    ENVELOPE,
    assert_safe,
    claim_until_empty,
    joined,
    outgoing,
    take,
)
from tests import streams
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer

MIB = 1 << 20
Make = Callable[..., Any]

OUTBOX = """
CREATE TABLE {table} (id {id} NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload {payload})"""
"""Debezium's documentation has uuid and jsonb."""
INSERT = (
    "INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', %s, %s, %s)"
)


@pytest.fixture
def make() -> Iterator[Make]:
    opened: list[Any] = []

    def make(url: str, *, timeout: float | None = None, **options: str) -> Any:
        config = BindingConfig(url=url, visibility_timeout=timeout, client_options=options)
        opened.append(create_binding("sql", config))
        return opened[-1]

    yield make
    for binding in opened:
        binding.close()


def run(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    parts = make_url(url)
    login: dict[str, Any] = {"host": parts.host, "port": parts.port, "user": parts.username}
    login |= {"password": parts.password, "autocommit": True}
    if parts.get_backend_name() == "postgresql":
        connection: Any = psycopg.connect(**login, dbname=parts.database)
    else:
        connection = pymysql.connect(**login, database=parts.database)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []


def shown(binding: Any, claimed: Any) -> list[dict[str, Any]]:
    names = ["body", "headers", "id", "count", "redelivered", "key"]
    return [{**row, "headers": dict(row["headers"])} for row in claimed.select(names).to_pylist()]


# Debezium.


@pytest.fixture
def table() -> str:
    return f"outbox_{uuid.uuid4().hex[:8]}"


@pytest.mark.server
@pytest.mark.parametrize(
    ("id_type", "payload_type"),
    [
        ("uuid", "jsonb"),
        ("varchar(255)", "json"),
        ("bigserial", "text"),
        ("uuid", "bytea"),
        ("bytea", "varchar(4096)"),
    ],
)
def test_an_outbox_of_a_service_is_read_whatever_its_types(
    make: Make, postgresql_server: PostgresServer, table: str, id_type: str, payload_type: str
) -> None:
    url, own = postgresql_server.url, id_types()[id_type]
    run(url, OUTBOX.format(table=table, id=id_type, payload=payload_type))
    for event_id, payload in zip(own, ['{"a": 1}', None], strict=True):
        body = payload.encode() if payload and payload_type == "bytea" else payload
        run(url, INSERT.format(table=table), event_id, "customer-7", "OrderCreated", body)
    assert_read_and_deleted(make(url, layout="debezium", table=table), own)
    assert run(url, f"SELECT id FROM {table}") == run(url, f"SELECT id FROM {table}_claims") == []


@pytest.mark.server
@pytest.mark.parametrize(
    ("id_type", "payload_type"),
    [("binary(16)", "json"), ("char(36)", "longblob"), ("bigint AUTO_INCREMENT", "longtext")],
)
def test_an_outbox_in_mariadb_is_read_whatever_its_types(
    make: Make, mariadb_server: MariaDbServer, table: str, id_type: str, payload_type: str
) -> None:
    url, own = mariadb_server.url, id_types()[id_type]
    run(url, OUTBOX.format(table=table, id=id_type, payload=payload_type) + " COLLATE latin1_swedish_ci")
    for event_id, payload in zip(own, ['{"a": 1}', None], strict=True):
        run(url, INSERT.format(table=table), event_id, "customer-7", "OrderCreated", payload)
    assert_read_and_deleted(make(url, layout="debezium", table=table), own)
    assert run(url, f"SELECT id FROM {table}") == run(url, f"SELECT id FROM {table}_claims") == []


def id_types() -> dict[str, list[Any]]:
    texts = [f"00000000-0000-7000-8000-00000000000{number}" for number in (1, 2)]
    binary = [uuid.UUID(text).bytes for text in texts]
    return {
        "uuid": texts,
        "varchar(255)": texts,
        "char(36)": texts,
        "bytea": binary,
        "binary(16)": binary,
        "bigserial": [9, 10],
        "bigint AUTO_INCREMENT": [9, 10],
    }


def assert_read_and_deleted(binding: Any, ids: list[Any]) -> None:
    names = [each.hex() if isinstance(each, bytes) else str(each) for each in ids]
    own = {"headers": {"type": "OrderCreated"}, "key": "customer-7", "redelivered": False, "count": 1}
    expected = [
        {**own, "id": name, "body": body} for name, body in zip(names, (b'{"a": 1}', b"null"), strict=True)
    ]
    assert binding.backlog("order") == 2
    assert shown(binding, joined(binding.browse("order"))) == expected
    claimed = take(binding, "order", 1)
    rest = take(binding, "order", 1)
    assert shown(binding, joined([claimed, rest])) == expected
    binding.release("order", rest)
    again = take(binding, "order", 1)
    assert shown(binding, again) == [{**expected[1], "count": 2, "redelivered": True}]
    assert binding.acknowledge("order", joined([claimed, again, rest])).to_pylist() == [True, True, False]
    new = outgoing([b'{"a": 2}'], keys=["customer-8"], headers=[{"type": "OrderPaid"}])
    assert binding.publish("order", new) == 1
    claimed = take(binding, "order", 1)
    [row] = shown(binding, claimed)
    assert (row["body"], row["key"], row["headers"]) == (b'{"a": 2}', "customer-8", {"type": "OrderPaid"})
    assert binding.acknowledge("order", claimed).to_pylist() == [True]


def test_what_we_write_has_the_columns_of_the_router(make: Make, tmp_path: Path) -> None:
    binding = make(f"sqlite:///{tmp_path}/q.db", layout="debezium")
    binding.publish("order", outgoing([ENVELOPE, b"x"], keys=["customer-7", None]))
    with binding._client.reading() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM outbox ORDER BY id").all()
    assert [row[1:] for row in rows] == [
        ("order", "customer-7", "urn:babel:orders:created", ENVELOPE.decode()),
        ("order", "", "", "x"),
    ]
    assert {uuid.UUID(row[0]).version for row in rows} == {7}


def test_rows_are_read_in_the_order_of_our_ids(make: Make, tmp_path: Path) -> None:
    binding = make(f"sqlite:///{tmp_path}/q.db", layout="debezium")
    bodies = [b"%d" % number for number in range(90)]
    for start in range(0, len(bodies), 30):
        binding.publish("order", outgoing(bodies[start : start + 30]))
    assert claim_until_empty(binding, "order") == bodies


def test_another_table_is_refused(make: Make, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    make(url, layout="outbox").backlog("order")
    with pytest.raises(
        BrokerError, match="'outbox' is not that of Debezium's outbox event router, for it lacks"
    ):
        make(url, layout="debezium").backlog("order")


# pgmq.


@pytest.fixture
def queue() -> str:
    return f"orders_{uuid.uuid4().hex[:12]}"


def send(url: str, queue: str, message: str, headers: str | None = None) -> int:
    [[row]] = run(url, "SELECT pgmq.send(%s, %s::jsonb, %s::jsonb)", queue, message, headers)
    return int(row)


@pytest.mark.server
def test_a_message_of_another_client_shows_its_metadata(make: Make, pgmq_url: str, queue: str) -> None:
    run(pgmq_url, "SELECT pgmq.create(%s)", queue)
    first = send(
        pgmq_url, queue, '{"b":1,"a":[true,"é"]}', '{"x-pgmq-group": "eu", "n": 1.50, "deep": {"a": null}}'
    )
    assert send(pgmq_url, queue, '"text"') == first + 1
    binding = make(pgmq_url, layout="pgmq")
    headers = {"x-pgmq-group": "eu", "n": "1.50", "deep": '{"a": null}'}
    own = {"count": 1, "redelivered": False}
    expected = [
        {
            "body": '{"a": [true, "é"], "b": 1}'.encode(),
            "headers": headers,
            "key": "eu",
            "id": str(first),
            **own,
        },
        {"body": b'"text"', "headers": {}, "key": None, "id": str(first + 1), **own},
    ]
    assert shown(binding, joined(binding.browse(queue))) == expected
    assert shown(binding, take(binding, queue, 2)) == expected
    assert queue in binding.queues()


@pytest.mark.server
def test_what_we_send_is_json_to_other_clients(make: Make, pgmq_url: str, queue: str) -> None:
    binding = make(pgmq_url, layout="pgmq")
    bodies = [b'{"a":1}', rb'{"a":"\u0000"}', b'{"a":2}', b'{"n":1e999999}', b"[3]"]
    assert binding.publish(queue, outgoing(bodies, keys=["eu", *[None] * 4])) == 5
    rows = run(pgmq_url, "SELECT message, headers FROM pgmq.read(%s, 0, 10) ORDER BY msg_id", queue)
    assert [row[0] for row in rows][::2] == [{"a": 1}, {"a": 2}, [3]]
    encoded = {"babelqueue-body": "base64"}
    assert [row[1] for row in rows] == [{"x-pgmq-group": "eu"}, encoded, None, encoded, None]
    got = joined(binding.browse(queue)).column("body").to_pylist()
    assert got == [b'{"a": 1}', bodies[1], b'{"a": 2}', bodies[3], b"[3]"]


@pytest.mark.server
@pytest.mark.parametrize(("verb", "archived"), [("delete", []), ("archive", [({"a": 1},)])])
def test_what_is_acknowledged_is_deleted_or_archived(
    make: Make, pgmq_url: str, queue: str, verb: str, archived: list[Any]
) -> None:
    binding = make(pgmq_url, layout="pgmq", acknowledge=verb)
    binding.publish(queue, outgoing([b'{"a": 1}']))
    assert claim_until_empty(binding, queue) == [b'{"a": 1}']
    assert run(pgmq_url, f"SELECT message FROM pgmq.a_{queue}") == archived


@pytest.mark.server
def test_reads_of_others_count_as_attempts_and_end_our_claims(make: Make, pgmq_url: str, queue: str) -> None:
    binding = make(pgmq_url, layout="pgmq")
    binding.publish(queue, outgoing([ENVELOPE]))
    assert run(pgmq_url, "SELECT read_ct FROM pgmq.read(%s, 0, 1)", queue) == [(1,)]
    claimed = take(binding, queue, 1)
    options = read_options({"url": pgmq_url, "queue": queue, "sql.layout": "pgmq"})
    rows = to_rows(claimed, queue, binding, SCHEMA, options).to_pylist()
    assert (claimed.column("count").to_pylist(), rows[0]["attempts"]) == ([2], 1)
    run(pgmq_url, "SELECT pgmq.set_vt(%s, %s, 0)", queue, int(claimed.column("id")[0].as_py()))
    assert len(run(pgmq_url, "SELECT msg_id FROM pgmq.read(%s, 60, 1)", queue)) == 1
    assert binding.acknowledge(queue, claimed).to_pylist() == [False]
    run(pgmq_url, "SELECT pgmq.drop_queue(%s)", queue)
    assert binding.acknowledge(queue, claimed).to_pylist() == [False]
    assert binding.claim(queue, 1, MIB).num_rows == 0


@pytest.mark.server
def test_a_database_without_pgmq_says_so(make: Make, postgresql_server: PostgresServer) -> None:
    with pytest.raises(BrokerError, match=r"it has no pgmq.*CREATE EXTENSION pgmq") as caught:
        make(postgresql_server.url, layout="pgmq").backlog("orders")
    assert_safe(caught.value)


# Both.


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("sqlite:////srv/q.db", {"layout": "pgmq"}, "sql.layout=pgmq is for PostgreSQL"),
        (
            "postgresql://h/d",
            {"layout": "pgmq", "table": "x"},
            "sql.table has no meaning with sql.layout=pgmq",
        ),
        ("sqlite:////srv/q.db", {"layout": "debezium", "time_zone": "UTC"}, "sql.time_zone has no meaning"),
        ("sqlite:////srv/q.db", {"layout": "outbox", "failed_table": "x"}, "sql.failed_table has no meaning"),
        (
            "sqlite:////srv/q.db",
            {"acknowledge": "archive"},
            "sql.acknowledge has no meaning with sql.layout=initphp",
        ),
    ],
)
def test_options_that_a_layout_does_not_have(url: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        create_binding("sql", BindingConfig(url=url, client_options=options))


@pytest.mark.parametrize("layout", ["debezium", pytest.param("pgmq", marks=pytest.mark.server)])
def test_a_stream_reads_it_through_the_journal(
    spark: Any, request: pytest.FixtureRequest, tmp_path: Path, queue: str, layout: str
) -> None:
    url = request.getfixturevalue("pgmq_url") if layout == "pgmq" else f"sqlite:///{tmp_path}/q.db"
    options = {"sql.layout": layout}
    written = [("urn:babel:orders:created", f'{{"order_id": {n}}}', f"customer-{n}") for n in range(6)]
    frame = spark.createDataFrame(written, "job STRING, data STRING, key STRING")
    writer = frame.write.format("babelqueue").options(url=url, queue=queue, **options)
    writer.mode("append").save()
    rows = [row for batch in streams.drain(spark, url, queue, tmp_path, **options) for row in batch]
    assert sorted(streams.numbers(rows)) == [0, 1, 2, 3, 4, 5]
    assert sorted(row.delivery.key for row in rows) == sorted(key for *_, key in written)
    assert streams.left(url, queue, **options) == 0
