"""What the SQL binding does on PostgreSQL and MariaDB: tables, InitPHP's workers beside it, conflicts, errors."""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pymysql
import pytest
from sqlalchemy import Engine, event, make_url
from sqlalchemy.engine import URL

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.bindings.sql.dialects import MySql, Postgres
from babelqueue_spark.errors import BrokerError, OptionError, QueueForbiddenError
from babelqueue_spark.testing import (
    SECRET,
    assert_safe,
    claim_until_empty,
    eventually,
    in_processes,
    joined,
    outgoing,
    take,
)
from tests import streams
from tests.servers import Server
from tests.servers.certificates import Certificates
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer

pytestmark = pytest.mark.server

MIB = 1 << 20
BERLIN = ZoneInfo("Europe/Berlin")
BODY = (
    '{"job":"urn:babel:orders:created","trace_id":"7b1c","data":{"größe":"ünï 注 \U0001f4e6"},"attempts":2}'
)

# The statements by which InitPHP's PDO transport creates its tables on MySQL and MariaDB.
INITPHP_JOBS = """
CREATE TABLE IF NOT EXISTS jobs (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, queue VARCHAR(255) NOT NULL,
    urn VARCHAR(255) NOT NULL, trace_id VARCHAR(64) NULL, attempts INT NOT NULL DEFAULT 0,
    payload TEXT NOT NULL, available_at DATETIME NOT NULL, reserved_at DATETIME NULL,
    created_at DATETIME NOT NULL, KEY jobs_reserve_idx (queue, available_at, reserved_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci"""
INITPHP_FAILED = """
CREATE TABLE IF NOT EXISTS jobs_failed (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, queue VARCHAR(255) NOT NULL,
    urn VARCHAR(255) NOT NULL, trace_id VARCHAR(64) NULL, attempts INT NOT NULL DEFAULT 0,
    payload TEXT NOT NULL, reason VARCHAR(64) NOT NULL, failed_at DATETIME NOT NULL,
    created_at DATETIME NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci"""

# InitPHP has none for PostgreSQL; these say the same in its words.
POSTGRES_JOBS = """
CREATE TABLE jobs (
    id BIGSERIAL PRIMARY KEY, queue VARCHAR(255) NOT NULL, urn VARCHAR(255) NOT NULL, trace_id VARCHAR(64) NULL,
    attempts INT NOT NULL DEFAULT 0, payload TEXT NOT NULL, available_at TIMESTAMP(0) NOT NULL,
    reserved_at TIMESTAMP(0) NULL, created_at TIMESTAMP(0) NOT NULL);
CREATE INDEX jobs_reserve_idx ON jobs (queue, available_at, reserved_at)"""
POSTGRES_FAILED = """
CREATE TABLE jobs_failed (
    id BIGSERIAL PRIMARY KEY, queue VARCHAR(255) NOT NULL, urn VARCHAR(255) NOT NULL, trace_id VARCHAR(64) NULL,
    attempts INT NOT NULL DEFAULT 0, payload TEXT NOT NULL, reason VARCHAR(64) NOT NULL,
    failed_at TIMESTAMP(0) NOT NULL, created_at TIMESTAMP(0) NOT NULL)"""

Connect = Callable[..., SqlBinding]


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def url(server: Server) -> str:
    return new_database(server)


def new_database(server: Server) -> str:
    name = f"shop_{uuid.uuid4().hex[:12]}"
    run(server.url, f"CREATE DATABASE {name}")
    return make_url(server.url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    opened: list[SqlBinding] = []

    def connect(given: str = url, *, timeout: float | None = None, **options: str) -> SqlBinding:
        opened.append(
            SqlBinding(BindingConfig(url=given, visibility_timeout=timeout, client_options=options))
        )
        return opened[-1]

    yield connect
    for binding in opened:
        binding.close()


def driver(url: str) -> Any:
    """A connection of the bare driver, each statement a transaction, as PDO's is."""
    parts = make_url(url)
    login = {"host": parts.host, "port": parts.port, "user": parts.username, "password": parts.password}
    if is_postgres(url):
        return psycopg.connect(**login, dbname=parts.database, autocommit=True)
    return pymysql.connect(**login, database=parts.database, autocommit=True)


def is_postgres(url: str) -> bool:
    return make_url(url).get_backend_name() == "postgresql"


def run(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(driver(url)) as connection:
        return execute(connection, statement, *values)


def execute(connection: Any, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []


def create_as_initphp(url: str) -> None:
    for statement in (POSTGRES_JOBS, POSTGRES_FAILED) if is_postgres(url) else (INITPHP_JOBS, INITPHP_FAILED):
        run(url, statement)


# The tables.


def test_the_backlog_goes_by_the_clock_of_now(connect: Connect, queue: str) -> None:
    """A driver whose machine was suspended, or a server whose clock was set forward."""
    reader, writer = connect(), connect()
    assert reader.backlog(queue) == 0
    reader._client._clock._offset -= 3600
    writer.publish(queue, outgoing([b"a"]))
    assert reader.backlog(queue) == 1
    assert [rows.num_rows for rows in reader.browse(queue)] == [1]


def test_the_tables_are_those_of_initphp(connect: Connect, server: Server, url: str) -> None:
    connect().backlog("orders")
    theirs = new_database(server)
    create_as_initphp(theirs)
    for table in ("jobs", "jobs_failed"):
        assert layout(url, table) == layout(theirs, table)


def layout(url: str, table: str) -> list[Any]:
    """What the database says of a table, but for the two liberties that we take."""
    if not is_postgres(url):
        created: str = run(url, f"SHOW CREATE TABLE {table}")[0][1]
        return sorted(line.strip(" ,") for line in created.replace("longtext", "text").splitlines())
    columns = (
        "SELECT column_name, data_type, character_maximum_length, datetime_precision, is_nullable, "
        "column_default FROM information_schema.columns WHERE table_name = %s"
    )
    indexes = run(url, "SELECT indexdef FROM pg_indexes WHERE tablename = %s", table)
    return sorted(run(url, columns, table)) + sorted(row[0].replace(", id)", ")") for row in indexes)


def test_payloads_are_not_bound_to_64_kib_and_claims_follow_the_index_to_the_id(
    connect: Connect, url: str
) -> None:
    connect().backlog("orders")
    if is_postgres(url):
        index = "SELECT indexdef FROM pg_indexes WHERE indexname = 'jobs_reserve_idx'"
        assert "(queue, available_at, reserved_at, id)" in run(url, index)[0][0]
    else:
        assert "`payload` longtext NOT NULL" in run(url, "SHOW CREATE TABLE jobs")[0][1]


def test_processes_that_start_at_once_create_the_tables_once(url: str) -> None:
    config = BindingConfig(url=url)
    assert in_processes(4, publish_one, config) == [1] * 4
    with SqlBinding(config) as binding:
        assert binding.backlog("orders") == 4


def publish_one(config: BindingConfig) -> int:
    with SqlBinding(config) as binding:
        return binding.publish("orders", outgoing([b"x"]))


def test_tables_of_others_serve_as_well(connect: Connect, url: str) -> None:
    create_as_initphp(url)
    binding = connect()
    assert binding.publish("orders", outgoing([b"a", b"b"]), idempotency_key="m") == 2
    claimed = take(binding, "orders", 2)
    assert claimed.column("body").to_pylist() == [b"a", b"b"]
    assert binding.acknowledge("orders", claimed).to_pylist() == [True, True]
    assert binding.publish("failed/orders", outgoing([b"c"])) == 1
    assert joined(binding.browse("failed/orders")).column("body").to_pylist() == [b"c"]


def test_times_with_a_time_zone_are_refused(postgresql_server: PostgresServer) -> None:
    table = f"zoned_{uuid.uuid4().hex}"
    zoned = POSTGRES_JOBS.replace("jobs", table).replace("created_at TIMESTAMP(0)", "created_at TIMESTAMPTZ")
    run(postgresql_server.url, zoned)
    config = BindingConfig(url=postgresql_server.url, client_options={"table": table})
    with SqlBinding(config) as binding, pytest.raises(BrokerError, match=r"time zone \(created_at\)"):
        binding.backlog("orders")


def test_columns_of_ones_own_may_have_a_time_zone(postgresql_server: PostgresServer) -> None:
    table = f"others_{uuid.uuid4().hex}"
    run(postgresql_server.url, POSTGRES_JOBS.replace("jobs", table))
    run(postgresql_server.url, f"ALTER TABLE {table} ADD inserted_at TIMESTAMPTZ DEFAULT now()")
    config = BindingConfig(url=postgresql_server.url, client_options={"table": table})
    with SqlBinding(config) as binding:
        assert binding.publish("orders", outgoing([b"a"])) == 1


def test_a_body_that_does_not_fit_is_refused_and_not_cut(
    connect: Connect, mariadb_server: MariaDbServer
) -> None:
    url = new_database(mariadb_server)
    create_as_initphp(url)
    run(mariadb_server.url, "SET GLOBAL sql_mode = ''")
    try:
        binding = connect(url)
        assert binding.publish("orders", outgoing([b"x" * 65_535])) == 1
        with pytest.raises(BrokerError, match=r"too long .*64 KiB.*MODIFY payload LONGTEXT") as caught:
            binding.publish("orders", outgoing([b"fits", b"x" * 65_536]))
        assert_safe(caught.value)
    finally:
        run(mariadb_server.url, "SET GLOBAL sql_mode = DEFAULT")
    assert run(url, "SELECT count(*), max(length(payload)) FROM jobs") == [(1, 65_535)]


# What the rows hold.


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"\xff\xfe", "is not UTF-8"), (b"cut \xc3", "is not UTF-8"), (b"nul\x00", "holds a NUL byte")],
)
def test_a_body_that_the_tables_cannot_hold_is_named(
    connect: Connect, url: str, body: bytes, says: str
) -> None:
    binding = connect()
    if says == "holds a NUL byte" and not is_postgres(url):
        assert binding.publish("orders", outgoing([body])) == 1
        assert take(binding, "orders", 1).column("body").to_pylist() == [body]
        return
    for queue in ("orders", "failed/orders"):
        with pytest.raises(
            BrokerError, match=rf"message 2 of 3 {says}.*nothing was published.*base64"
        ) as caught:
            binding.publish(queue, outgoing([b"a", body, b"c"]), idempotency_key="m")
        assert_safe(caught.value)
    assert binding.backlog("orders") == 0
    assert binding.publish("orders", outgoing([b"a"]), idempotency_key="m") == 1


def test_the_mirror_holds_no_nul(connect: Connect, url: str) -> None:
    body = b'{"job":"urn:\\u0000x","trace_id":"a\\u0000b","dead_letter":{"reason":"c\\u0000d"}}'
    binding = connect()
    binding.publish("orders", outgoing([body]))
    binding.publish("failed/orders", outgoing([body]))
    assert run(url, "SELECT urn, trace_id FROM jobs") == [("urn:x", "ab")]
    assert run(url, "SELECT urn, trace_id, reason FROM jobs_failed") == [("urn:x", "ab", "cd")]
    assert take(binding, "orders", 1).column("body").to_pylist() == [body]


def test_names_that_the_collation_thinks_equal_are_different_queues(connect: Connect) -> None:
    binding = connect()
    names = ["orders", "ORDERS", "orders ", "örders", "straße", "strasse"]
    for name in names:
        binding.publish(name, outgoing([name.encode()]))
        binding.publish(f"failed/{name}", outgoing([name.encode()]))
    for name in names:
        assert binding.backlog(name) == binding.backlog(f"failed/{name}") == 1
        for queue in (name, f"failed/{name}"):
            assert joined(binding.browse(queue)).column("body").to_pylist() == [name.encode()]
        assert binding.claim(name, 10, MIB).column("body").to_pylist() == [name.encode()]


def test_a_name_that_is_too_long(connect: Connect) -> None:
    binding = connect()
    assert binding.publish("q" * 255, outgoing([b"x"])) == 1
    with pytest.raises(OptionError, match="is not the name of a queue"):
        binding.publish("q" * 256, outgoing([b"x"]))


# InitPHP's workers and producers, by the statements of its PDO transport.


class InitPhp:
    """`PdoTransport`, with PHP's `date.timezone` and `retryAfter`."""

    def __init__(self, url: str, zone: ZoneInfo = BERLIN, retry_after: int = 90) -> None:
        self.connection = driver(url)
        self._zone, self._retry_after = zone, retry_after

    def publish(self, queue: str, payload: str) -> None:
        now = self._moment()
        execute(
            self.connection,
            "INSERT INTO jobs (queue, urn, trace_id, attempts, payload, available_at, reserved_at, created_at) "
            "VALUES (%s, %s, %s, %s, %s, %s, NULL, %s)",
            queue, "urn:babel:orders:created", "7b1c", 2, payload, now, now,
        )  # fmt: skip

    def reserve(self, queue: str) -> tuple[int, str] | None:
        for _ in range(16):
            stale = self._moment(-self._retry_after)
            rows = execute(
                self.connection,
                "SELECT id, payload FROM jobs WHERE queue = %s AND available_at <= %s "
                "AND (reserved_at IS NULL OR reserved_at <= %s) ORDER BY id ASC LIMIT 1",
                queue, self._moment(), stale,
            )  # fmt: skip
            if not rows:
                return None
            with self.connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE jobs SET reserved_at = %s WHERE id = %s "
                    "AND (reserved_at IS NULL OR reserved_at <= %s)",
                    (self._moment(), rows[0][0], stale),
                )
                if cursor.rowcount == 1:
                    return rows[0]  # type: ignore[return-value]
        return None

    def acknowledge(self, row: int) -> None:
        execute(self.connection, "DELETE FROM jobs WHERE id = %s", row)

    def work(self, queue: str) -> list[bytes]:
        """Reserve and acknowledge one message after the other, until nothing is left."""
        handled: list[bytes] = []
        while execute(self.connection, "SELECT 1 FROM jobs LIMIT 1"):
            if job := self.reserve(queue):
                self.acknowledge(job[0])
                handled.append(job[1].encode())
        return handled

    def _moment(self, seconds: int = 0) -> str:
        return (datetime.now(self._zone) + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")


@pytest.fixture
def initphp(connect: Connect, url: str) -> Iterator[InitPhp]:
    connect().backlog("orders")
    worker = InitPhp(url)
    yield worker
    worker.connection.close()


def test_what_initphp_published_is_read(connect: Connect, initphp: InitPhp) -> None:
    binding = connect(timezone="Europe/Berlin")
    before = datetime.now(UTC) - timedelta(seconds=1)
    payloads = [BODY, "", "poison", " space at both ends \r\n"]
    for payload in payloads:
        initphp.publish("orders", payload)
    assert binding.backlog("orders") == 4
    claimed = take(binding, "orders", 4)
    assert claimed.column("body").to_pylist() == [payload.encode() for payload in payloads]
    assert all(before <= moment <= datetime.now(UTC) for moment in claimed.column("enqueued_at").to_pylist())
    assert initphp.reserve("orders") is None
    assert binding.acknowledge("orders", claimed).true_count == 4


def test_what_we_publish_is_reserved_by_initphp(connect: Connect, initphp: InitPhp, url: str) -> None:
    binding = connect(time_zone="Europe/Berlin")
    binding.publish("orders", outgoing([BODY.encode(), b"later"], delays=[None, 3_600_000]))
    columns = "queue, urn, trace_id, attempts, payload, reserved_at, available_at = created_at"
    row, later = run(url, f"SELECT {columns} FROM jobs ORDER BY id")
    assert row == ("orders", "urn:babel:orders:created", "7b1c", 2, BODY, None, True)
    assert not later[-1]
    created = run(url, "SELECT created_at FROM jobs ORDER BY id")[0][0]
    on_the_wall = datetime.now(BERLIN).replace(tzinfo=None)
    assert on_the_wall - timedelta(seconds=5) <= created <= on_the_wall
    reserved = initphp.reserve("orders")
    assert reserved is not None
    assert reserved[1] == BODY
    assert initphp.reserve("orders") is None
    assert binding.claim("orders", 10, MIB).num_rows == binding.backlog("orders") == 0
    initphp.acknowledge(reserved[0])
    assert run(url, "SELECT payload FROM jobs") == [("later",)]


def test_what_a_dead_initphp_worker_left_comes_back_and_the_reverse(
    connect: Connect, initphp: InitPhp, url: str
) -> None:
    binding = connect(time_zone="Europe/Berlin", timeout=2)
    initphp.publish("orders", BODY)
    assert initphp.reserve("orders")
    claimed = take(binding, "orders", 1)
    assert claimed.column("redelivered").to_pylist() == [True]
    hasty = InitPhp(url, retry_after=1)
    with closing(hasty.connection):
        eventually(lambda: hasty.reserve("orders"))
    assert binding.acknowledge("orders", claimed).to_pylist() == [False]


@pytest.mark.parametrize("number", [3_000])
def test_workers_of_initphp_and_bulk_claims_handle_each_message_once(
    connect: Connect, url: str, number: int
) -> None:
    bodies = [f"{message}".encode() for message in range(number)]
    binding = connect(time_zone="Europe/Berlin")
    binding.publish("orders", outgoing(bodies))
    run(url, "CREATE TABLE workers (number INT PRIMARY KEY)")
    shares = dict(in_processes(3, work_on, url))
    assert Counter(body for share in shares.values() for body in share) == Counter(bodies)
    assert all(shares[worker] for worker in range(3))
    assert run(url, "SELECT count(*) FROM jobs") == [(0,)]


def work_on(url: str) -> tuple[int, list[bytes]]:
    """Two processes of ours, and one of InitPHP's."""
    number = 0
    while not joins(url, number):
        number += 1
    if number == 0:
        worker = InitPhp(url)
        with closing(worker.connection):
            return number, worker.work("orders")
    config = BindingConfig(url=url, client_options={"time_zone": "Europe/Berlin"})
    with SqlBinding(config) as binding:
        return number, claim_until_empty(binding, "orders")


def joins(url: str, number: int) -> bool:
    try:
        run(url, "INSERT INTO workers VALUES (%s)", number)
    except (psycopg.IntegrityError, pymysql.IntegrityError):
        return False
    return True


@pytest.mark.spark
def test_claimers_of_a_stream_and_a_worker_of_initphp_handle_each_message_once(
    spark: Any, connect: Connect, url: str, tmp_path: Path
) -> None:
    connect(time_zone="Europe/Berlin").publish(
        "orders", outgoing([streams.envelope(number) for number in range(6_000)])
    )
    claimers: list[int] = []
    ours: list[int] = []

    def each(frame: Any, _: int) -> None:
        claimers.append(frame.rdd.getNumPartitions())
        ours.extend(streams.numbers(frame.collect()))

    bounds = {"numPartitions": 2, "maxMessagesPerTrigger": 1_500, "sql.time_zone": "Europe/Berlin"}
    query = streams.run(
        streams.stream(spark, url, "orders", tmp_path, **bounds), tmp_path, each, processingTime="0 seconds"
    )
    eventually(lambda: ours or query.exception(), streams.WAIT)
    worker = InitPhp(url)
    with closing(worker.connection):
        theirs = [json.loads(payload)["data"]["order_id"] for payload in worker.work("orders")]
    query.processAllAvailable()
    query.stop()
    assert Counter([*ours, *theirs]) == Counter(range(6_000))
    assert len(ours) > 1_500
    assert theirs
    assert max(claimers) == 2


# Locks and conflicts.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that wait for locks a short time."""
    monkeypatch.setattr(Postgres, "session", (*Postgres.session, "SET lock_timeout = '100ms'"))
    monkeypatch.setattr(MySql, "session", (*MySql.session, "SET SESSION innodb_lock_wait_timeout = 1"))


def test_locks_of_others_stop_neither_backlog_nor_browse_nor_claims(connect: Connect, url: str) -> None:
    binding = connect()
    binding.publish("orders", outgoing([b"a", b"b", b"c"]))
    with closing(driver(url)) as other:
        execute(other, "BEGIN")
        execute(other, "UPDATE jobs SET attempts = 7 WHERE id = 1")
        assert binding.backlog("orders") == 3
        assert joined(binding.browse("orders")).num_rows == 3
        claimed = binding.claim("orders", 10, MIB)
        assert claimed.column("body").to_pylist() == [b"b", b"c"]
        assert binding.acknowledge("orders", claimed).to_pylist() == [True, True]
        execute(other, "ROLLBACK")
    assert binding.claim("orders", 10, MIB).column("body").to_pylist() == [b"a"]


def test_a_browse_locks_nobody(connect: Connect, url: str) -> None:
    binding = connect()
    binding.publish("orders", outgoing([b"a", b"b"]))
    batches = binding.browse("orders")
    assert next(batches).num_rows == 2
    run(url, "UPDATE jobs SET attempts = 7")
    run(url, "DELETE FROM jobs")
    assert list(batches) == []


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_stays_is_an_error_and_changes_nothing(connect: Connect, url: str) -> None:
    binding = connect()
    binding.publish("orders", outgoing([b"a"]))
    claimed = take(binding, "orders", 1)
    with closing(driver(url)) as other:
        execute(other, "BEGIN")
        execute(other, "UPDATE jobs SET attempts = 7")
        with pytest.raises(BrokerError, match=r"held the same rows .* each of 4 tries") as caught:
            binding.acknowledge("orders", claimed)
        assert_safe(caught.value)
        execute(other, "ROLLBACK")
    assert binding.acknowledge("orders", claimed).to_pylist() == [True]


@pytest.fixture
def slow_to_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions on PostgreSQL that look for a deadlock later than the test makes one."""
    monkeypatch.setattr(Postgres, "session", (*Postgres.session, "SET deadlock_timeout = '2s'"))


@pytest.mark.usefixtures("slow_to_object")
def test_a_deadlock_is_repeated(connect: Connect, url: str) -> None:
    binding = connect()
    with closing(driver(url)) as other, ThreadPoolExecutor(1) as pool, errors_seen() as errors:
        if is_postgres(url):
            execute(other, "SET deadlock_timeout = '20s'")  # whoever looks first is the victim

        def is_the_victim() -> bool:
            """Whether the deadlock ends our acknowledge; on a busy machine it may end the other transaction."""
            binding.publish("orders", outgoing([b"a", b"b", b"c", b"d"]))
            claimed = take(binding, "orders", 4)
            binding.publish("others", outgoing([b"x"] * 1_000))
            first, _, third, _ = claimed.column("id").to_pylist()
            execute(other, "BEGIN")
            # MariaDB's victim is who has changed less.
            execute(other, f"UPDATE jobs SET attempts = 7 WHERE id >= {third}")
            acknowledged = pool.submit(binding.acknowledge, "orders", claimed)
            eventually(lambda: waits_for_a_lock(url))
            spared = True
            try:
                execute(other, f"UPDATE jobs SET attempts = 7 WHERE id = {first}")
            except (psycopg.OperationalError, pymysql.OperationalError) as error:
                if "deadlock" not in str(error).lower():
                    raise
                spared = False
            execute(other, "ROLLBACK")
            assert acknowledged.result().to_pylist() == [True] * 4
            return spared

        eventually(is_the_victim, patience=120)
    assert re.search("(?i)deadlock", "\n".join(errors))
    assert binding.backlog("orders") == 0


@contextmanager
def errors_seen() -> Iterator[list[str]]:
    """What the databases object to meanwhile, whether it is overcome or not."""
    seen: list[str] = []

    def note(context: Any) -> None:
        seen.append(str(context.original_exception))

    event.listen(Engine, "handle_error", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "handle_error", note)


def waits_for_a_lock(url: str) -> bool:
    if is_postgres(url):
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
        return bool(run(url, waiting, make_url(url).database)[0][0])
    # Its table of waits is refreshed when it was not read for a tenth of a second.
    time.sleep(0.15)
    return bool(run(url, "SELECT count(*) FROM information_schema.innodb_lock_waits")[0][0])


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_long_queue_is_claimed_browsed_and_settled_by_index(
    connect: Connect, url: str, analyzed: bool
) -> None:
    binding = connect()
    for _ in range(3):
        binding.publish("orders", outgoing([b"x" * 400] * 10_000))
    if analyzed:
        run(url, "ANALYZE jobs" if is_postgres(url) else "ANALYZE TABLE jobs")
    plans: list[str] = []

    def explain(connection: Any, _: Any, statement: str, values: Any, *__: Any) -> None:
        if "jobs" in statement and not statement.startswith(("EXPLAIN", "INSERT")):
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", values).all()
            plans.append(" ".join(str(value) for row in rows for value in row))

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        next(iter(binding.browse("orders")))
        claimed = binding.claim("orders", 900, 64 * MIB)
        binding.acknowledge("orders", claimed.slice(0, 450))
        binding.release("orders", claimed.slice(450))
    finally:
        event.remove(Engine, "before_cursor_execute", explain)
    assert len(plans) >= 5
    assert not [plan for plan in plans if re.search(r"Seq Scan|Sort|filesort", plan)]
    claims = [plan for plan in plans if "jobs_reserve_idx" in by_key(plan)]
    assert len(claims) == 1


def by_key(plan: str) -> str:
    """Of MariaDB the chosen key, which stands after the possible ones; of PostgreSQL the plan."""
    return plan.replace("PRIMARY,jobs_reserve_idx", "").replace("jobs_reserve_idx,PRIMARY", "")


# Errors.


def with_parts(url: str, **parts: Any) -> str:
    changed: URL = make_url(url).set(**parts)
    return changed.render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"password": f"wrong-{SECRET}"}, "refuses the login: check user and password"),
        ({"username": "nobody"}, "refuses the login"),
        ({"database": "no_such_shop"}, "no such database"),
        ({"port": 1}, "cannot be reached: check host and port"),
        ({"host": "no-such-host.invalid"}, "cannot be reached"),
    ],
)
def test_what_is_wrong_with_the_url_is_said(
    connect: Connect, url: str, parts: dict[str, Any], says: str
) -> None:
    changed = with_parts(url, **parts)
    with pytest.raises(BrokerError, match=says) as caught:
        connect(changed).backlog("orders")
    assert_safe(caught.value)
    shown = make_url(changed)
    label = "PostgreSQL" if is_postgres(url) else "MariaDB"
    assert f"] {label} at {shown.host}:{shown.port}/{shown.database}: " in str(caught.value)


def test_a_server_that_never_answers_is_given_up(connect: Connect, url: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        query = {"connect_timeout": "2"} if is_postgres(url) else {"read_timeout": "2"}
        with pytest.raises(BrokerError, match="did not answer in time") as caught:
            connect(with_parts(url, port=silent.getsockname()[1], query=query)).backlog("orders")
        assert_safe(caught.value)


def test_a_permission_that_is_missing_is_said(connect: Connect, server: Server, url: str) -> None:
    connect().backlog("orders")
    user = f"reader_{uuid.uuid4().hex[:8]}"
    database = make_url(url).database
    if is_postgres(url):
        run(url, f"CREATE USER {user} PASSWORD '{SECRET}'")
        run(url, f"GRANT SELECT ON jobs, jobs_failed, jobs_published TO {user}")
    else:
        run(url, f"CREATE USER {user} IDENTIFIED BY '{SECRET}'")
        run(url, f"GRANT SELECT ON {database}.* TO {user}")
    binding = connect(with_parts(url, username=user, password=SECRET))
    assert binding.backlog("orders") == 0
    with pytest.raises(QueueForbiddenError, match="lacks a permission: it needs SELECT, INSERT") as caught:
        binding.publish("orders", outgoing([b"x"]))
    assert_safe(caught.value)
    creating = connect(with_parts(url, username=user, password=SECRET), table="others")
    with pytest.raises(BrokerError, match="CREATE while tables are missing"):
        creating.backlog("orders")


@pytest.mark.parametrize("kind", [PostgresServer, MariaDbServer])
def test_a_binding_survives_a_restart_of_its_server(kind: type[PostgresServer | MariaDbServer]) -> None:
    with kind() as server, SqlBinding(BindingConfig(url=server.url)) as binding:
        binding.publish("orders", outgoing([f"{number}".encode() for number in range(6)]))
        claimed = take(binding, "orders", 2)
        server.stop()
        verbs: list[Callable[[], Any]] = [
            lambda: binding.backlog("orders"),
            lambda: binding.claim("orders", 1, MIB),
            lambda: binding.acknowledge("orders", claimed),
            lambda: binding.publish("orders", outgoing([b"x"])),
            lambda: list(binding.browse("orders")),
        ]
        for verb in verbs:
            with pytest.raises(BrokerError, match=rf"{server.address}/shop: .*(reached|lost)") as caught:
                verb()
            assert_safe(caught.value)
        server.start()
        assert binding.acknowledge("orders", claimed).to_pylist() == [True, True]
        claimed = take(binding, "orders", 4)
        assert claimed.column("body").to_pylist() == [b"2", b"3", b"4", b"5"]
        server.stop()
        server.start()
        assert binding.acknowledge("orders", claimed).true_count == 4
        assert binding.backlog("orders") == 0


@pytest.mark.parametrize("kind", [PostgresServer, MariaDbServer])
def test_a_server_that_stops_within_a_verb(kind: type[PostgresServer | MariaDbServer]) -> None:
    with kind() as server, SqlBinding(BindingConfig(url=server.url)) as binding:
        binding.publish("orders", outgoing([b"a"]))

        def stop(_: Any, __: Any, statement: str, *___: Any) -> None:
            if statement.startswith("UPDATE"):
                server.stop()

        event.listen(Engine, "before_cursor_execute", stop)
        try:
            with pytest.raises(BrokerError, match="connection was lost") as caught:
                binding.claim("orders", 1, MIB)
        finally:
            event.remove(Engine, "before_cursor_execute", stop)
        assert_safe(caught.value)
        server.start()
        assert take(binding, "orders", 1).column("redelivered").to_pylist() == [None]


@pytest.fixture(scope="module", params=[PostgresServer, MariaDbServer])
def secure(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Server]:
    with request.param(tls=certificates) as server:
        yield server


def tls_query(url: str, certificates: Certificates) -> dict[str, str]:
    """What the URL of a client says that checks the server, and shows a certificate of its own."""
    files = {"ca": certificates.ca, "cert": certificates.client, "key": certificates.client_key}
    certificates.client_key.chmod(0o600)
    if is_postgres(url):
        names = {"ca": "sslrootcert", "cert": "sslcert", "key": "sslkey"}
        return {"sslmode": "verify-full"} | {names[kind]: str(file) for kind, file in files.items()}
    return {f"ssl_{kind}": str(file) for kind, file in files.items()}


def test_tls_with_an_authority_and_a_certificate_of_ones_own(secure: Any, certificates: Certificates) -> None:
    url = with_parts(secure.url, query=tls_query(secure.url, certificates))
    with SqlBinding(BindingConfig(url=url)) as binding:
        binding.publish("orders", outgoing([b"a", b"b"]))
        assert take(binding, "orders", 2).column("body").to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize("wrong", ["another authority", "no authority", "no certificate"])
def test_tls_that_cannot_be_says_so(
    secure: Any, certificates: Certificates, tmp_path: Path, wrong: str
) -> None:
    query = tls_query(secure.url, certificates)
    [authority] = {"sslrootcert", "ssl_ca"} & query.keys()
    if wrong == "another authority":
        query[authority] = str(Certificates(tmp_path).ca)
    elif wrong == "no authority":
        query[authority] = str(tmp_path / "missing.pem")
    else:
        query = {name: text for name, text in query.items() if name in ("sslmode", authority)}
    says = "refuses the login" if wrong == "no certificate" and "mariadb" in secure.url else "TLS failed"
    binding = SqlBinding(BindingConfig(url=with_parts(secure.url, query=query)))
    with binding, pytest.raises(BrokerError, match=says) as caught:
        binding.backlog("orders")
    assert_safe(caught.value)
