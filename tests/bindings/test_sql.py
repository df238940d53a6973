"""What only the SQL binding does: InitPHP's tables, its workers beside ours, times, SQLite."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, event, make_url

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.bindings.sql.client import SqlClient
from babelqueue_spark.bindings.sql.options import SqlOptions
from babelqueue_spark.errors import BrokerError, OptionError
from babelqueue_spark.testing import (
    SECRET,
    assert_safe,
    claim_until_empty,
    in_processes,
    joined,
    outgoing,
    take,
)

MIB = 1 << 20
NOON = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)

# The statements by which InitPHP's PDO transport creates its tables on SQLite.
INITPHP_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue VARCHAR(255) NOT NULL, urn VARCHAR(255) NOT NULL,
    trace_id VARCHAR(64) NULL, attempts INT NOT NULL DEFAULT 0, payload TEXT NOT NULL,
    available_at DATETIME NOT NULL, reserved_at DATETIME NULL, created_at DATETIME NOT NULL);
CREATE INDEX IF NOT EXISTS jobs_reserve_idx ON jobs (queue, available_at, reserved_at);
CREATE TABLE IF NOT EXISTS jobs_failed (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue VARCHAR(255) NOT NULL, urn VARCHAR(255) NOT NULL,
    trace_id VARCHAR(64) NULL, attempts INT NOT NULL DEFAULT 0, payload TEXT NOT NULL,
    reason VARCHAR(64) NOT NULL, failed_at DATETIME NOT NULL, created_at DATETIME NOT NULL);
"""

Connect = Callable[..., SqlBinding]


class Clock:
    """Seconds that pass on this host when the test says so."""

    def __init__(self, start: datetime) -> None:
        self.seconds = start.timestamp()

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(NOON)
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def connect(path: Path, clock: Clock) -> Iterator[Connect]:
    opened: list[SqlBinding] = []

    def connect(timeout: float | None = None, query: str = "", **options: str) -> SqlBinding:
        config = BindingConfig(
            url=f"sqlite:///{path}{query}", visibility_timeout=timeout, client_options=options
        )
        opened.append(SqlBinding(config))
        return opened[-1]

    yield connect
    for binding in opened:
        binding.close()


def rows(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def insert_job(path: Path, payload: str | bytes, *, created_at: str = "2026-01-31 11:00:00") -> None:
    rows(
        path,
        "INSERT INTO jobs (queue, urn, attempts, payload, available_at, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        "orders", "", 0, payload, "2026-01-31 11:00:00", created_at,
    )  # fmt: skip


def envelope(**changes: Any) -> bytes:
    message = {
        "job": "urn:babel:orders:created",
        "trace_id": "7b1c0f9e-3a7e-4f7e-9d0e-0c7f1f4c9d11",
        "data": {"order_id": 1042},
        "meta": {
            "id": "0b8c", "queue": "orders", "lang": "php", "schema_version": 1, "created_at": 1749132727000
        },
        "attempts": 0,
    }  # fmt: skip
    return json.dumps({**message, **changes}).encode()


# The tables.


def test_the_tables_are_those_of_initphp(connect: Connect, path: Path, tmp_path: Path) -> None:
    connect().backlog("orders")
    theirs = tmp_path / "initphp.db"
    with closing(sqlite3.connect(theirs)) as connection:
        connection.executescript(INITPHP_TABLES)
    for table in ("jobs", "jobs_failed"):
        assert sorted(layout(path, table)) == sorted(layout(theirs, table))
    index = "SELECT name FROM pragma_index_info('jobs_reserve_idx')"
    assert rows(path, index) == rows(theirs, index) == [("queue",), ("available_at",), ("reserved_at",)]
    assert "AUTOINCREMENT" in rows(path, "SELECT sql FROM sqlite_master WHERE name = 'jobs'")[0][0]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


def layout(path: Path, table: str) -> list[tuple[Any, ...]]:
    return [column[1:] for column in rows(path, f"PRAGMA table_info({table})")]


def test_tables_that_initphp_created_serve_as_well(connect: Connect, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(INITPHP_TABLES)
    insert_job(path, envelope().decode())
    binding = connect()
    claimed = take(binding, "orders", 1)
    assert claimed.column("body").to_pylist() == [envelope()]
    assert binding.publish("orders", outgoing([b"x"]), idempotency_key="m") == 1


def test_a_table_of_another_layout_is_refused(connect: Connect, path: Path) -> None:
    rows(path, "CREATE TABLE jobs (id INTEGER PRIMARY KEY, queue TEXT, payload TEXT, attempts INT)")
    with pytest.raises(
        BrokerError, match=r"'jobs' is not InitPHP's, for it lacks .*trace_id.* sql\.table"
    ) as caught:
        connect().backlog("orders")
    assert_safe(caught.value)
    assert connect(table="babel_jobs").backlog("orders") == 0


def test_tables_can_have_other_names(connect: Connect, path: Path) -> None:
    binding = connect(table="work", failed_table="dead")
    binding.publish("orders", outgoing([b"x"]), idempotency_key="m")
    binding.publish("failed/orders", outgoing([b"y"]))
    assert [rows(path, f"SELECT count(*) FROM {name}") for name in ("work", "dead", "work_published")] == [
        [(1,)]
    ] * 3
    assert rows(path, "SELECT count(*) FROM pragma_index_info('work_reserve_idx')") == [(3,)]


def test_processes_that_start_at_once_create_the_tables_once(tmp_path: Path) -> None:
    config = BindingConfig(url=f"sqlite:///{tmp_path}/new.db")
    assert in_processes(4, publish_one, config) == [1] * 4
    with SqlBinding(config) as binding:
        assert binding.backlog("orders") == 4


def publish_one(config: BindingConfig) -> int:
    with SqlBinding(config) as binding:
        return binding.publish("orders", outgoing([b"x"]))


# What a row holds.


def test_a_row_mirrors_its_envelope(connect: Connect, path: Path, clock: Clock) -> None:
    clock.advance(0.9)
    body = envelope(attempts=2)
    connect().publish("other name", outgoing([body]))
    columns = "id, queue, urn, trace_id, attempts, payload, available_at, reserved_at, created_at"
    now = "2026-01-31 12:00:00"
    trace = "7b1c0f9e-3a7e-4f7e-9d0e-0c7f1f4c9d11"
    assert rows(path, f"SELECT {columns} FROM jobs") == [
        (1, "other name", "urn:babel:orders:created", trace, 2, body.decode(), now, None, now)
    ]


@pytest.mark.parametrize(
    ("body", "mirror"),
    [
        (b"not json", ("", None, 0, "text")),
        (b"", ("", None, 0, "text")),
        (b"\xff\x00", ("", None, 0, "blob")),
        (b"nul\x00inside", ("", None, 0, "text")),
        (envelope(trace_id="  "), ("urn:babel:orders:created", None, 0, "text")),
        (envelope(job="urn:" + "x" * 400, trace_id="t" * 99), ("urn:" + "x" * 251, "t" * 64, 0, "text")),
        (envelope(job=7, attempts="many", trace_id=[]), ("", None, 0, "text")),
        (b'{"urn":"urn:babel:a:b","attempts":3}', ("urn:babel:a:b", None, 3, "text")),
    ],
)
def test_the_mirror_of_a_bad_body_is_blank(
    connect: Connect, path: Path, body: bytes, mirror: tuple[Any, ...]
) -> None:
    binding = connect()
    binding.publish("orders", outgoing([body]))
    assert rows(path, "SELECT urn, trace_id, attempts, typeof(payload) FROM jobs") == [mirror]
    assert take(binding, "orders", 1).column("body").to_pylist() == [body]


@pytest.mark.parametrize("payload", ["", "nul\x00inside\x00", "ünï 注", b"\xff\xfe", b"\x00", b"plain"])
def test_payloads_that_others_wrote_come_back_as_bytes(
    connect: Connect, path: Path, payload: str | bytes
) -> None:
    binding = connect()
    binding.backlog("orders")
    insert_job(path, payload)
    expected = payload if isinstance(payload, bytes) else payload.encode()
    assert joined(binding.browse("orders")).column("body").to_pylist() == [expected]
    assert take(binding, "orders", 1).column("body").to_pylist() == [expected]


@pytest.mark.parametrize("created_at", ["", "yesterday", "2026-01-31T11:00:00Z", "1769857200"])
def test_a_time_that_cannot_be_read_is_null(connect: Connect, path: Path, created_at: str) -> None:
    binding = connect()
    binding.backlog("orders")
    insert_job(path, "x", created_at=created_at)
    assert take(binding, "orders", 1).column("enqueued_at").to_pylist() == [None]


# Times.


def test_times_are_on_the_wall_clock_of_the_zone(connect: Connect, path: Path) -> None:
    binding = connect(time_zone="Europe/Berlin")
    binding.publish("orders", outgoing([b"x"]))
    claimed = take(binding, "orders", 1)
    assert rows(path, "SELECT created_at, reserved_at FROM jobs") == [("2026-01-31 13:00:00",) * 2]
    assert claimed.column("enqueued_at").to_pylist() == [NOON]
    assert binding.acknowledge("orders", claimed).to_pylist() == [True]


def test_delays_are_rounded_up_to_whole_seconds(connect: Connect, path: Path, clock: Clock) -> None:
    clock.advance(0.25)
    delays = [0, 1, 750, 751, 60_000, -5, 2**63 - 1]
    connect().publish("orders", outgoing([b"x"] * len(delays), delays=delays))
    assert [row[0] for row in rows(path, "SELECT available_at FROM jobs ORDER BY id")] == [
        "2026-01-31 12:00:00",
        "2026-01-31 12:00:01",
        "2026-01-31 12:00:01",
        "2026-01-31 12:00:02",
        "2026-01-31 12:01:01",
        "2026-01-31 12:00:00",
        "9999-12-30 00:00:00",
    ]


def test_claims_lapse_after_the_visibility_timeout_and_not_before(connect: Connect, clock: Clock) -> None:
    first, second = connect(), connect()
    first.publish("orders", outgoing([b"a", b"b"]))
    claimed = take(first, "orders", 2)
    assert claimed.column("redelivered").to_pylist() == [None, None]
    clock.advance(89)
    assert second.claim("orders", 10, MIB).num_rows == second.backlog("orders") == 0
    clock.advance(1)
    assert second.backlog("orders") == 2
    assert joined(second.browse("orders")).column("redelivered").to_pylist() == [True, True]
    stolen = second.claim("orders", 1, MIB)
    assert stolen.column("redelivered").to_pylist() == [True]
    assert stolen.column("id").to_pylist() == claimed.column("id").to_pylist()[:1]
    assert first.acknowledge("orders", claimed).to_pylist() == [False, True]
    assert second.acknowledge("orders", stolen).to_pylist() == [True]


def test_receipts_of_several_claims_of_a_message_are_told_apart(connect: Connect, clock: Clock) -> None:
    binding = connect()
    binding.publish("orders", outgoing([b"a"]))
    stale = take(binding, "orders", 1)
    clock.advance(90)
    fresh = take(binding, "orders", 1)
    assert binding.acknowledge("orders", pa.concat_batches([stale, fresh])).to_pylist() == [False, True]


@pytest.mark.parametrize(
    "change", [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)]
)
def test_no_claim_lapses_early_when_the_clocks_change(
    connect: Connect, clock: Clock, change: datetime
) -> None:
    holder, other = (connect(time_zone="Europe/Berlin") for _ in range(2))
    clock.seconds = (change - timedelta(days=1)).timestamp()
    holder.publish("orders", outgoing([b"x"] * 200))
    clock.seconds = (change - timedelta(seconds=100)).timestamp()
    for _ in range(200):
        assert holder.claim("orders", 1, MIB).num_rows == 1
        assert other.backlog("orders") <= 199
        clock.advance(1)
    held_for_less_than_the_timeout = 89
    assert other.backlog("orders") <= 200 - held_for_less_than_the_timeout
    clock.advance(3_600 + 90)
    assert other.backlog("orders") == 200


def test_delayed_messages_join_the_queue_when_they_are_due(connect: Connect, clock: Clock) -> None:
    binding = connect()
    binding.publish("orders", outgoing([b"late", b"first"], delays=[5_000, None]))
    clock.advance(2)
    binding.publish("orders", outgoing([b"second"]))
    clock.advance(10)
    binding.publish("orders", outgoing([b"third"]))
    claimed = take(binding, "orders", 4)
    assert claimed.column("body").to_pylist() == [b"first", b"second", b"late", b"third"]


# The failed table.


def test_dead_letters_in_the_style_of_initphp_are_rows_of_the_failed_table(
    connect: Connect, path: Path
) -> None:
    binding = connect()
    name = SqlBinding.dead_letter_name("orders", "initphp")
    block = {"reason": "unknown_urn", "error": None, "exception": None, "failed_at": 1749132727000,
             "original_queue": "orders", "attempts": 3, "lang": "python"}  # fmt: skip
    annotated = envelope(attempts=3, dead_letter=block)
    assert binding.publish(name, outgoing([annotated, b"\xff"])) == 2
    now = "2026-01-31 12:00:00"
    assert rows(path, "SELECT queue, urn, attempts, reason, failed_at, created_at FROM jobs_failed") == [
        ("orders", "urn:babel:orders:created", 3, "unknown_urn", now, now),
        ("orders", "", 0, "failed", now, now),
    ]
    assert binding.backlog(name) == 2
    assert binding.backlog("orders") == binding.backlog("failed/other") == 0


def test_the_failed_table_is_browsed_and_emptied_by_receipt(connect: Connect, path: Path) -> None:
    binding = connect()
    binding.publish("failed/orders", outgoing([b"a", b"b", b"c"]))
    seen = joined(binding.browse("failed/orders"))
    assert seen.column("body").to_pylist() == [b"a", b"b", b"c"]
    assert seen.column("enqueued_at").to_pylist() == [NOON] * 3
    binding.release("failed/orders", seen)
    assert binding.acknowledge("failed/orders", seen.slice(1)).to_pylist() == [True, True]
    assert binding.acknowledge("failed/orders", seen).to_pylist() == [True, False, False]
    assert binding.backlog("failed/orders") == 0


def test_the_failed_table_cannot_be_claimed(connect: Connect) -> None:
    with pytest.raises(BrokerError, match=r"no reservation columns: read it with spark\.read") as caught:
        connect().claim("failed/orders", 1, MIB)
    assert_safe(caught.value)


# Markers.


def test_markers_are_forgotten_after_a_week(connect: Connect, path: Path, clock: Clock) -> None:
    binding = connect()
    binding.publish("orders", outgoing([b"x"]), idempotency_key="old")
    clock.advance(7 * 86_400)
    assert binding.publish("orders", outgoing([b"x"]), idempotency_key="old") == 0
    clock.advance(1)
    binding.publish("orders", outgoing([b"x"]), idempotency_key="new")
    assert rows(path, "SELECT marker, created_at FROM jobs_published") == [("new", "2026-02-07 12:00:01")]


# InitPHP's workers beside our bulk claims.


def initphp_worker(path: Path) -> list[bytes]:
    """Reserves one row, acknowledges it, and so on, by the statements of InitPHP's PDO transport."""
    handled: list[bytes] = []
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        while (row := initphp_reserve(connection)) is not None:
            connection.execute("DELETE FROM jobs WHERE id = ?", (row[0],))
            handled.append(row[1].encode())
    return handled


def initphp_reserve(connection: sqlite3.Connection) -> tuple[int, str] | None:
    now = datetime.now(UTC)
    moment, stale = (t.strftime("%Y-%m-%d %H:%M:%S") for t in (now, now - timedelta(seconds=90)))
    for _ in range(16):
        row: tuple[int, str] | None = connection.execute(
            "SELECT id, payload FROM jobs WHERE queue = ? AND available_at <= ? "
            "AND (reserved_at IS NULL OR reserved_at <= ?) ORDER BY id ASC LIMIT 1",
            ("orders", moment, stale),
        ).fetchone()
        if row is None:
            return None
        claimed = connection.execute(
            "UPDATE jobs SET reserved_at = ? WHERE id = ? AND (reserved_at IS NULL OR reserved_at <= ?)",
            (moment, row[0], stale),
        )
        if claimed.rowcount == 1:
            return row
    return None


def work_on(path: Path, kinds: list[str]) -> list[bytes]:
    """One process of ours or of InitPHP's, whichever is not taken yet."""
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        number = connection.execute("INSERT INTO workers DEFAULT VALUES").lastrowid
    if kinds[(number or 0) % len(kinds)] == "initphp":
        return initphp_worker(path)
    with SqlBinding(BindingConfig(url=f"sqlite:///{path}")) as binding:
        return claim_until_empty(binding, "orders")


def test_workers_of_initphp_and_bulk_claims_handle_each_message_once(path: Path) -> None:
    bodies = [f"{number}".encode() for number in range(1_500)]
    with SqlBinding(BindingConfig(url=f"sqlite:///{path}")) as binding:
        binding.publish("orders", outgoing(bodies))
        rows(path, "CREATE TABLE workers (id INTEGER PRIMARY KEY)")
        shares = in_processes(4, work_on, path, ["initphp", "ours"])
        shares.append(claim_until_empty(binding, "orders"))
        assert Counter(body for share in shares for body in share) == Counter(bodies)
        assert rows(path, "SELECT count(*) FROM jobs") == [(0,)]


def test_a_message_that_an_initphp_worker_left_is_redelivered(path: Path) -> None:
    with SqlBinding(BindingConfig(url=f"sqlite:///{path}")) as binding:
        binding.publish("orders", outgoing([b"x"]))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            assert initphp_reserve(connection) == (1, "x")
        assert binding.claim("orders", 1, MIB).num_rows == 0
        rows(path, "UPDATE jobs SET reserved_at = datetime(reserved_at, '-91 seconds')")
        assert take(binding, "orders", 1).column("redelivered").to_pylist() == [True]


# SQLite.


def test_a_long_queue_is_claimed_and_browsed_without_sorting_it(connect: Connect, path: Path) -> None:
    binding = connect()
    binding.publish("orders", outgoing([b"x"] * 3))
    statements: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        if statement.startswith("SELECT"):
            statements.append((statement, values))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        list(binding.browse("orders"))
        binding.backlog("orders")
        binding.claim("orders", 1, MIB)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    plans = [
        row[3]
        for statement, values in statements
        for row in rows(path, f"EXPLAIN QUERY PLAN {statement}", *values)
    ]
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]
    assert any("INDEX jobs_reserve_idx (queue=? AND available_at<?)" in plan for plan in plans)


def test_reading_needs_no_lock_and_writing_says_who_holds_it(connect: Connect, path: Path) -> None:
    binding = connect(query="?timeout=0.5")
    binding.publish("orders", outgoing([b"x"]))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert binding.backlog("orders") == 1
        assert joined(binding.browse("orders")).num_rows == 1
        with pytest.raises(BrokerError, match="stayed locked longer than its busy timeout") as caught:
            binding.claim("orders", 1, MIB)
        assert_safe(caught.value)
        other.execute("ROLLBACK")
    assert binding.claim("orders", 1, MIB).num_rows == 1


def test_browsing_a_queue_while_it_is_changed(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("babelqueue_spark.bindings.sql.binding._BROWSE_ROWS", 2)
    binding = connect()
    binding.publish("orders", outgoing([b"0", b"1", b"2", b"3", b"4"]))
    seen: list[bytes] = []
    for batch in binding.browse("orders"):
        seen.extend(batch.column("body").to_pylist())
        binding.publish("orders", outgoing([b"newer"]))
        if len(seen) == 2:
            binding.acknowledge("orders", binding.claim("orders", 3, MIB))
    assert seen == [b"0", b"1", b"3", b"4"]


@pytest.mark.parametrize("content", ["directory", "text"])
def test_a_path_that_is_no_database(connect: Connect, path: Path, content: str) -> None:
    if content == "directory":
        path.mkdir()
    else:
        path.write_text("This is a text, and not a database.\n" * 100)
    with pytest.raises(BrokerError, match=r"queue\.db: the file") as caught:
        connect().backlog("orders")
    assert_safe(caught.value)


def test_ids_fit_into_statements_of_other_databases() -> None:
    database = SqlClient(make_url("mysql+pymysql://user:secret@db.example:5433/shop"), MetaData())
    assert database.address == "MySQL at db.example:5433/shop"
    parts = list(database.dialect.among(Column("id", Integer), list(range(12_000))))
    assert len(parts) == 3


# Options.


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file::memory:?cache=shared&uri=true", "in memory"),
        ("sqlite:///file:q?mode=memory&uri=true", "in memory"),
        ("sqlite:///queue.db", "whole path"),
        ("sqlite:///file:queue.db?uri=true", "whole path"),
        ("postgresql+psycopg://user:p@ss@host/db", "%40"),
        ("postgresql+psycopg://user:p@s:s@host/db", "percent-encoded"),
        (f"nonsense {SECRET}", "not a database URL"),
        (
            f"mariadb+pymysql://user:p@host/db?read_timeout={SECRET}",
            "'read_timeout' that is not a whole number",
        ),
        (f"nosuchdb://user:{SECRET}@host/db", "'nosuchdb', which SQLAlchemy does not know"),
        (
            f"mssql+pyodbc://user:{SECRET}@host/db",
            "'mssql\\+pyodbc', whose Python driver is missing: pip install pyodbc",
        ),
    ],
)
def test_urls_that_cannot_be_used(url: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        SqlBinding(BindingConfig(url=url))
    assert_safe(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "public.jobs"}, "sql.table has the value 'public.jobs', but takes letters"),
        ({"table": ""}, "sql.table"),
        ({"table": "jobs\n"}, "sql.table"),
        ({"failed_table": "jobs; DROP"}, "sql.failed_table"),
        ({"failed_table": "JOBS"}, "another table of ours"),
        ({"time_zone": "Mars/Olympus"}, "sql.time_zone has the value 'Mars/Olympus'"),
        ({"time_zone": "../etc/passwd"}, "sql.time_zone"),
        ({"time_zone": ""}, "sql.time_zone"),
        ({"tabel": "jobs"}, "sql.tabel is unknown: did you mean 'sql.table'"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        SqlBinding(BindingConfig(url="sqlite:////srv/q.db", client_options=options))


@pytest.mark.parametrize("name", ["time_zone", "timezone"])
def test_options_may_be_spelt_as_spark_spells_its_own(name: str) -> None:
    config = BindingConfig(
        url="sqlite:////srv/q.db", client_options={name: "Europe/Berlin", "failedtable": "f"}
    )
    options = SqlOptions.parse(config)
    assert options.time_zone.key == "Europe/Berlin"
    assert options.failed_table == "f"


DEAD_NETWORK = {
    "read_timeout": "25",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


@pytest.mark.parametrize(
    ("url", "driver", "query"),
    [
        ("postgresql://u@h/shop", "postgresql+psycopg", {"connect_timeout": "10", **DEAD_NETWORK}),
        (
            "postgresql+psycopg://u@h/shop?connect_timeout=3",
            "postgresql+psycopg",
            {"connect_timeout": "3", **DEAD_NETWORK},
        ),
        (
            "mysql://u@h/shop?read_timeout=5",
            "mysql+pymysql",
            {"connect_timeout": "10", "read_timeout": "5", "write_timeout": "25"},
        ),
        (
            "mariadb://u@h/shop",
            "mariadb+pymysql",
            {"connect_timeout": "10", "read_timeout": "25", "write_timeout": "25"},
        ),
    ],
)
def test_servers_have_a_driver_and_time_limits(url: str, driver: str, query: dict[str, str]) -> None:
    parsed = SqlOptions.parse(BindingConfig(url=url)).url
    assert parsed.drivername == driver
    assert dict(parsed.query) == query


@pytest.mark.parametrize("timeout", [0.0, 0.5, 1.0, -1.0, 1e12, float("inf"), float("nan")])
def test_visibility_timeouts_that_the_tables_cannot_express(timeout: float) -> None:
    with pytest.raises(OptionError, match="visibilityTimeout"):
        SqlBinding(BindingConfig(url="sqlite:////srv/q.db", visibility_timeout=timeout))


def test_the_visibility_timeout_is_rounded_up(connect: Connect, clock: Clock) -> None:
    assert connect().lease == 89
    binding = connect(timeout=1.2)
    assert binding.lease == 1
    binding.publish("orders", outgoing([b"x"]))
    take(binding, "orders", 1)
    clock.advance(1.9)
    assert binding.backlog("orders") == 0
    clock.advance(0.1)
    assert binding.backlog("orders") == 1
