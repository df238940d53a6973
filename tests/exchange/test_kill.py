"""Releases and replays that are killed: nothing is lost, and on brokers that keep idempotency keys nothing is repeated."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.exchange import EventStore, Outbox, Schedule
from babelqueue_spark.testing import eventually
from tests.brokers import url_of
from tests.exchange import outboxes
from tests.exchange.schedules import (
    POINTS,
    killed,
    killed_at,
    messages,
    numbers_in,
    refuse_several_and_die_behind_the_third,
    store,
    waiting,
)

SHORT = 1
"""A lease in seconds: a release soon takes over what the dead one had claimed."""


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("broker", ["sqlite", "redis", "kafka"])
def test_a_killed_release_loses_nothing_and_repeats_nothing(
    broker: str, point: str, request: pytest.FixtureRequest, tmp_path: Path, queue: str
) -> None:
    schedule = Schedule(f"sqlite:///{tmp_path}/schedule.db", lease=SHORT)
    url = url_of(broker, request, tmp_path)
    queues = [queue, f"{queue}-b"]
    store(schedule, range(20), queues=queues)
    assert killed_at(point, schedule, {"url": url})
    published = {name: messages(url, name) for name in queues}
    assert_released(schedule, {"url": url})
    assert numbers_in(url, *queues) == [*range(0, 20, 2), *range(1, 20, 2)]
    for name in queues:
        assert messages(url, name)[: len(published[name])] == published[name]


def test_without_idempotency_keys_a_repeat_has_the_same_ids(
    rabbitmq_server: Any, tmp_path: Path, queue: str
) -> None:
    schedule = Schedule(f"sqlite:///{tmp_path}/schedule.db", lease=SHORT)
    options = {"url": rabbitmq_server.url, "queue": queue}
    store(schedule, range(5))
    assert killed_at("after the publish", schedule, options)
    assert_released(schedule, options)
    found = messages(rabbitmq_server.url, queue)
    assert len(found) == 10
    assert found[:5] == found[5:]


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["sqlite", "redis", "kafka"])
def test_a_release_that_is_killed_among_single_messages_repeats_none(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path, queue: str
) -> None:
    schedule = Schedule(f"sqlite:///{tmp_path}/schedule.db", lease=SHORT)
    options = {"url": url_of(broker, request, tmp_path), "queue": queue}
    store(schedule, range(5))
    assert killed(_release_singly, schedule, options)
    assert_released(schedule, options)
    assert numbers_in(options["url"], queue) == [*range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["sqlite", "redis", "kafka"])
def test_a_relay_that_is_killed_among_single_rows_repeats_none(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path, queue: str
) -> None:
    outbox = Outbox(f"sqlite:///{tmp_path}/shop.db", lease=2)
    options = {"url": url_of(broker, request, tmp_path)}
    outboxes.store(outbox, range(5), [queue])
    assert killed(_relay_singly, outbox, options)
    eventually(lambda: outbox.relay(options).messages > 0)
    assert {status for (status,) in outboxes.columns(outbox, "status")} == {"published"}
    assert numbers_in(options["url"], queue) == [*range(5)]


def _release_singly(schedule: Schedule, options: dict[str, str]) -> None:
    refuse_several_and_die_behind_the_third()
    schedule.release(options)


def _relay_singly(outbox: Outbox, options: dict[str, str]) -> None:
    refuse_several_and_die_behind_the_third()
    outbox.relay(options)


def assert_released(schedule: Schedule, options: dict[str, str]) -> None:
    """Release until nothing waits: a claim of a release that died ends with its lease."""

    def is_empty() -> bool:
        schedule.release(options)
        return waiting(schedule) == []

    eventually(is_empty)


def run(*command: str, dies: bool = False) -> int:
    """Exit code of a Python program in a session of its own; `dies` kills all of it behind the first chunk."""
    return subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "inject"), *sys.path]),
            "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false pyspark-shell",
            **({"DIES_BEHIND_A_CHUNK": "yes"} if dies else {}),
        },
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        timeout=200,
        check=False,
    ).returncode


def assert_killed_half_way(url: str, queue: str, *command: str) -> None:
    """Run a program that publishes the events of `filled`, and dies among them."""
    assert run(*command, dies=True) == -signal.SIGKILL
    assert 0 < len(messages(url, queue)) < 36


def filled(location: str) -> tuple[EventStore, dict[str, list[str]]]:
    """A store of 12 streams with three events each; their ids by stream."""
    store = EventStore(location)
    streams = [f"acme:article:{number}" for number in range(12)]
    events = {stream: [{"job": "urn:a", "data": {"stream": stream}} for _ in range(3)] for stream in streams}
    return store, {stream: store.put(stream, events[stream]) for stream in streams}


def ids_by_stream(url: str, queue: str) -> dict[str, list[str]]:
    found = defaultdict(list)
    for message in messages(url, queue):
        found[message["data"]["stream"]].append(message["meta"]["id"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["sqlite", "redis"])
def test_a_killed_replay_and_its_repetition_publish_each_event_once(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path, queue: str
) -> None:
    url = url_of(broker, request, tmp_path)
    location = str(tmp_path / "events")
    store, ids = filled(location)
    options = ["--url", url, "--queue", queue, "--txn", "again", "--no-bypass"]
    replay = ["-m", "babelqueue_spark.jobs", "events", "replay", location, *options]
    assert_killed_half_way(url, queue, *replay)
    store.put("acme:article:0", [{"job": "urn:a", "data": {"stream": "later"}}])
    assert run(*replay) == 0
    assert ids_by_stream(url, queue) == ids


FOLLOWING = """
import sys
from pyspark.sql import SparkSession
from babelqueue_spark.exchange import EventStore
location, url, queue = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
events = EventStore(location).follow(spark).selectExpr(
    "job", "get_json_object(string(body), '$.data') AS data", "named_struct('id', event_id) AS meta")
query = events.writeStream.format("babelqueue").options(
    url=url, queue=queue, checkpointLocation=location + "-checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["sqlite", "redis"])
def test_what_was_appended_is_published_once_over_a_kill(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path, queue: str
) -> None:
    """The program that appended may be gone, and so may the first one that publishes."""
    url = url_of(broker, request, tmp_path)
    location = str(tmp_path / "events")
    _, ids = filled(location)
    following = ["-c", FOLLOWING, location, url, queue]
    assert_killed_half_way(url, queue, *following)
    assert run(*following) == 0
    assert {stream: sorted(found) for stream, found in ids_by_stream(url, queue).items()} == {
        stream: sorted(expected) for stream, expected in ids.items()
    }


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_fifty_kills_lose_nothing_and_repeat_nothing(
    database: str, request: pytest.FixtureRequest, redis_server: Any, tmp_path: Path, queue: str
) -> None:
    schedule = Schedule(url_of(database, request, tmp_path), table=f"s_{queue[-8:]}", lease=SHORT)
    options = {"url": redis_server.url}
    queues = [queue, f"{queue}-b"]
    points = random.Random(50)
    kills = stored = 0
    while kills < 50:
        store(schedule, range(stored, stored + 20), queues=queues)
        stored += 20
        kills += killed_at(points.choice(POINTS), schedule, options)
    assert_released(schedule, options)
    assert sorted(numbers_in(redis_server.url, *queues)) == [*range(stored)]
