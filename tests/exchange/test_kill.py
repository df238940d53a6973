"""Releases and replays that are killed: nothing is lost, and on brokers that keep idempotency keys nothing is repeated."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.exchange import EventStore, Schedule
from tests.brokers import url_of
from tests.exchange.schedules import POINTS, killed_at, messages, numbers_in, store, waiting

NO_LEASE = 0
"""A lease that has ended at once: the next release takes over what the dead one had claimed."""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("broker", ["sqlite", "redis"])
def test_a_killed_release_loses_nothing_and_repeats_nothing(
    broker: str, point: str, request: pytest.FixtureRequest, tmp_path: Path, queue: str
) -> None:
    schedule = Schedule(f"sqlite:///{tmp_path}/schedule.db", lease=NO_LEASE)
    url = url_of(broker, request, tmp_path)
    queues = [queue, f"{queue}-b"]
    store(schedule, range(20), queues=queues)
    assert killed_at(point, schedule, {"url": url})
    published = {name: messages(url, name) for name in queues}
    schedule.release({"url": url})
    assert waiting(schedule) == []
    assert numbers_in(url, *queues) == [*range(0, 20, 2), *range(1, 20, 2)]
    for name in queues:
        assert messages(url, name)[: len(published[name])] == published[name]


def test_without_idempotency_keys_a_repeat_has_the_same_ids(
    rabbitmq_server: Any, tmp_path: Path, queue: str
) -> None:
    schedule = Schedule(f"sqlite:///{tmp_path}/schedule.db", lease=NO_LEASE)
    options = {"url": rabbitmq_server.url, "queue": queue}
    store(schedule, range(5))
    assert killed_at("after the publish", schedule, options)
    schedule.release(options)
    found = messages(rabbitmq_server.url, queue)
    assert len(found) == 10
    assert found[:5] == found[5:]


def replay(location: Path, url: str, queue: str, **environment: str) -> int:
    """Exit code of the job in a session of its own."""
    options = ["--url", url, "--queue", queue, "--txn", "again", "--no-bypass"]
    return subprocess.run(
        [sys.executable, "-m", "babelqueue_spark.jobs", "events", "replay", str(location), *options],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "inject"), *sys.path]),
            "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false pyspark-shell",
            **environment,
        },
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        timeout=200,
        check=False,
    ).returncode


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["sqlite", "redis"])
def test_a_killed_replay_and_its_repetition_publish_each_event_once(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path, queue: str
) -> None:
    store, url = EventStore(str(tmp_path / "events")), url_of(broker, request, tmp_path)
    streams = [f"acme:article:{number}" for number in range(12)]
    ids = {
        stream: store.put(stream, [{"job": "urn:a", "data": {"stream": stream}} for _ in range(3)])
        for stream in streams
    }
    assert replay(tmp_path / "events", url, queue, REPLAY_DIES="yes") == -signal.SIGKILL
    assert 0 < len(messages(url, queue)) < 36
    store.put(streams[0], [{"job": "urn:a", "data": {"stream": "later"}}])
    assert replay(tmp_path / "events", url, queue) == 0
    found: dict[str, list[str]] = {stream: [] for stream in streams}
    for message in messages(url, queue):
        found[message["data"]["stream"]].append(message["meta"]["id"])
    assert found == ids


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_fifty_kills_lose_nothing_and_repeat_nothing(
    database: str, request: pytest.FixtureRequest, redis_server: Any, tmp_path: Path, queue: str
) -> None:
    schedule = Schedule(url_of(database, request, tmp_path), table=f"s_{queue[-8:]}", lease=NO_LEASE)
    options = {"url": redis_server.url}
    queues = [queue, f"{queue}-b"]
    points = random.Random(50)
    kills = stored = 0
    while kills < 50:
        store(schedule, range(stored, stored + 20), queues=queues)
        stored += 20
        kills += killed_at(points.choice(POINTS), schedule, options)
    schedule.release(options)
    assert waiting(schedule) == []
    assert sorted(numbers_in(redis_server.url, *queues)) == [*range(stored)]
