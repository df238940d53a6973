"""Hosts whose clocks differ or step: leases, delays and redeliveries go by the broker's clock."""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from babelqueue_spark.bindings import Binding, clocks
from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.connector.source.stream import QueueStreamReader
from babelqueue_spark.journal import Journal, Segment
from babelqueue_spark.testing import MIB, eventually, take
from babelqueue_spark.worker import IdempotencyStore, Record, RedisStore, SqlStore
from tests.brokers import url_of
from tests.source.test_claiming import attempt, hasty_attempt
from tests.streams import backlog, envelope, publish

SERVERS = ["redis", pytest.param("laravel", marks=pytest.mark.server), "postgresql", "mariadb"]
LEASE = {"visibilityTimeout": "60s"}
AHEAD, BEHIND = 120.0, -120.0
HOUR = 3600.0
SLACK = 60.0
"""Seconds by which a stalled machine may mistake the clock of a broker."""
A, B = "a" * 32, "b" * 32


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of the broker that a test is parametrized with."""
    broker = request.param
    return (
        f"{url_of('redis', request, tmp_path)}?laravel=1"
        if broker == "laravel"
        else url_of(broker, request, tmp_path)
    )


@pytest.fixture
def location(tmp_path: Path) -> str:
    made = Journal(str(tmp_path / "journal"))
    _ = made.id
    return made.location


on_servers = pytest.mark.parametrize("url", SERVERS, indirect=True)
everywhere = pytest.mark.parametrize("url", [*SERVERS, "sqlite"], indirect=True)
both_ways = pytest.mark.parametrize("skew", [AHEAD, BEHIND], ids=["ahead", "behind"])


# Hosts: processes whose wall clocks are off.

_wall = time.time, time.time_ns


def set_clock(seconds: float) -> None:
    """Put this process's wall clock so many seconds ahead of the machine's."""
    now, now_ns = _wall
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1_000_000_000)


@contextmanager
def host(skew: float = 0.0) -> Iterator[Callable[..., Any]]:
    """Calls functions in a process whose clock is off by `skew` seconds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=set_clock, initargs=(skew,)) as pool:
        yield lambda work, *given: pool.submit(work, *given).result(timeout=60)


@pytest.fixture
def stepping() -> Iterator[Callable[[float], None]]:
    """Steps the wall clock of this process; it is right again after the test."""
    yield set_clock
    time.time, time.time_ns = _wall


def connected(url: str, queue: str) -> Binding:
    binding = read_options({"url": url, "queue": queue, **LEASE}).binding()
    assert isinstance(binding, Binding)
    return binding


def claim(url: str, queue: str) -> pa.RecordBatch:
    with connected(url, queue) as binding:
        return binding.claim(queue, 100, MIB)


def acknowledge(url: str, queue: str, claimed: pa.RecordBatch) -> list[bool]:
    with connected(url, queue) as binding:
        removed: list[bool] = binding.acknowledge(queue, claimed).to_pylist()
        return removed


# Claims.


@on_servers
@both_ways
def test_a_live_claim_is_nobody_elses_whatever_the_hosts_clocks_say(
    url: str, queue: str, skew: float
) -> None:
    """Two hosts, two minutes apart, and leases of one: each message is delivered to one of them."""
    with host() as right, host(skew) as wrong:
        for first, second in ((right, wrong), (wrong, right)):
            first(publish, url, queue, [envelope(1)])
            claimed = first(claim, url, queue)
            assert claimed.num_rows == 1
            assert second(backlog, url, queue) == 0
            assert second(claim, url, queue).num_rows == 0
            assert first(acknowledge, url, queue, claimed) == [True]
            assert second(claim, url, queue).num_rows == 0


@everywhere
def test_a_step_back_between_claim_and_acknowledge_changes_nothing(
    url: str, queue: str, stepping: Callable[[float], None]
) -> None:
    publish(url, queue, [envelope(1)])
    with connected(url, queue) as binding, connected(url, queue) as other:
        claimed = take(binding, queue, 1)
        stepping(-HOUR)
        assert other.claim(queue, 1, MIB).num_rows == 0
        assert binding.acknowledge(queue, claimed).to_pylist() == [True]
        assert other.claim(queue, 1, MIB).num_rows == 0


@everywhere
def test_what_lapsed_before_the_clock_was_set_back_is_recognised(
    url: str,
    queue: str,
    location: str,
    stepping: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task stalls until its claim lapses and another host has it; then the clock steps, and it acknowledges."""
    body = envelope(1)
    publish(url, queue, [body])
    write = Segment.write
    others: list[pa.RecordBatch] = []

    def stall(*given: Any) -> bool:
        written = write(*given)
        eventually(lambda: backlog(url, queue, visibilityTimeout="2s"))
        with read_options({"url": url, "queue": queue, "visibilityTimeout": "2s"}).binding() as other:
            assert isinstance(other, Binding)
            others.append(take(other, queue, 1))
            stepping(-HOUR)
            other.release(queue, others[0])
        return written

    with monkeypatch.context() as stalled:
        stalled.setattr(Segment, "write", stall)
        assert hasty_attempt(url, queue, location, 0) == [body]
    assert len(others) == 1
    assert attempt(url, queue, location, 0, "60s", batch=2) == []


def acknowledged_again(url: str, queue: str, location: str) -> list[bytes]:
    """Killed between acknowledge and its record, and repeated here."""
    [record] = Path(location).glob("batches/*/*.ack")
    record.unlink()
    return attempt(url, queue, location, 0)


@on_servers
def test_a_repeat_on_a_host_that_is_ahead_drops_no_later_message(url: str, queue: str, location: str) -> None:
    """By that host's clock the claim has lapsed; the broker knows that it was acknowledged in time."""
    body = envelope(1)
    publish(url, queue, [body])
    assert attempt(url, queue, location, 0) == [body]
    with host(AHEAD) as other:
        assert other(acknowledged_again, url, queue, location) == [body]
    publish(url, queue, [body])
    assert attempt(url, queue, location, 0, batch=2) == [body]


@on_servers
def test_a_driver_on_a_host_that_is_ahead_keeps_segments_as_long(
    url: str, queue: str, location: str, stepping: Callable[[float], None]
) -> None:
    publish(url, queue, [envelope(1)])
    options = {"url": url, "queue": queue, "journalLocation": location, "journalRetention": "1h"}
    first, next_one = (QueueStreamReader(read_options(options), SCHEMA) for _ in range(2))
    planned = first.latestOffset(first.initialOffset())
    assert planned["batch"] == 1
    first.stop()
    stepping(2 * HOUR)
    next_one.commit(planned)
    next_one.stop()
    state = Journal(location).state()
    assert (state.committed, state.cleaned) == (1, 0)


# Delays.


def publish_later(url: str, queue: str) -> None:
    """One message in an hour, and one at a moment an hour from now by a clock that is right."""
    moment = datetime.fromtimestamp(_wall[0]() + HOUR, UTC)
    rows = pa.RecordBatch.from_pylist(
        [{"job": "urn:x", "data": "{}", "deliver_at": moment}],
        pa.schema(
            [("job", pa.string()), ("data", pa.string()), ("deliver_at", pa.timestamp("us", tz="UTC"))]
        ),
    )
    options = read_options({"url": url, "queue": queue})
    with options.binding() as binding:
        binding.publish(queue, outgoing(1, body=[envelope(1)], delay=[HOUR * 1000]))
        [messages] = to_messages(rows, 0, IdSource("task"), options, binding).values()
        binding.publish(queue, messages)


@on_servers
@both_ways
def test_delays_are_those_of_the_brokers_clock(url: str, queue: str, skew: float) -> None:
    with host(skew) as wrong:
        before = time.time()
        wrong(publish_later, url, queue)
        after = time.time()
    assert backlog(url, queue) == 0
    assert all(before + HOUR - SLACK < due < after + HOUR + SLACK for due in due_times(url, queue))


def due_times(url: str, queue: str) -> list[float]:
    """When what lies in the broker is due, by the clock of this machine, which is the broker's."""
    if url.startswith("redis"):
        name = f"queues:{queue}" if "laravel" in url else queue
        with Redis.from_url(url.partition("?")[0]) as client:
            found = client.zrange(f"{name}:delayed", 0, -1, withscores=True)
        moments = [score for _, score in found]
    else:
        engine = create_engine(url)
        with engine.connect() as connection:
            rows = connection.execute(
                text("SELECT available_at FROM jobs WHERE queue = :queue"), {"queue": queue}
            )
            moments = [row[0].replace(tzinfo=UTC).timestamp() for row in rows]
        engine.dispose()
    assert len(moments) == 2
    return moments


# Idempotency stores.


def store_of(url: str, name: str) -> IdempotencyStore:
    if url.startswith("redis"):
        return RedisStore(url, prefix=f"{name}:", lease=60)
    return SqlStore(url, table=name.replace("-", "_"), lease=60)


def claim_in_store(url: str, name: str, owner: str) -> list[Record]:
    with store_of(url, name) as store:
        return store.claim(["x"], owner)


@pytest.mark.parametrize("url", ["redis", "postgresql", "mariadb"], indirect=True)
@both_ways
def test_a_message_in_hand_is_nobody_elses_whatever_the_hosts_clocks_say(
    url: str, queue: str, skew: float
) -> None:
    with host() as right, host(skew) as wrong:
        for first, second, name in ((right, wrong, f"{queue}-1"), (wrong, right, f"{queue}-2")):
            assert first(claim_in_store, url, name, A) == [Record("granted")]
            assert second(claim_in_store, url, name, B) == [Record("held")]


# The warning.


@on_servers
@pytest.mark.parametrize(
    ("skew", "says"),
    [
        (AHEAD, r"is 1[0-3]\d s ahead of the server's: set both by NTP"),
        (BEHIND, r"is 1[0-3]\d s behind the server's: set both by NTP"),
        (clocks.LARGEST_SKEW - 2, ""),
    ],
    ids=["ahead", "behind", "near"],
)
def test_a_host_that_is_off_is_told_once(
    url: str,
    queue: str,
    stepping: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    skew: float,
    says: str,
) -> None:
    monkeypatch.setattr(clocks, "_warned", set())
    stepping(skew)
    for _ in range(3):
        assert backlog(url, queue) == 0
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == bool(says)
    for warning in warnings:
        assert re.search(says, warning)
        assert warning.startswith(
            ("Redis at 127.0.0.1:", "PostgreSQL at 127.0.0.1:", "MariaDB at 127.0.0.1:")
        )
        assert "\n" not in warning


def test_a_slow_answer_is_no_skew(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the round trip is allowed for; the server's time is taken to be that of its middle."""
    moments = iter([100.0, 120.0, 130.0])
    monkeypatch.setattr(clocks, "_warned", set())
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(time, "time", lambda: 5_000.0)
    clock = clocks.ServerClock("Redis at h:6379")
    clock.read(lambda: 5_000.0)
    assert clock.now() == 5_020.0
    assert caplog.records == []
