"""The job events: a store is made, described, exported, followed, and replayed to queues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from babelqueue import BabelQueue, is_replay
from deltalake import DeltaTable

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.exchange import EventStore
from babelqueue_spark.jobs import events
from tests.jobs.conftest import Run
from tests.streams import backlog, envelope

RENAMED = "urn:babel:articles:renamed"


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "events")


@pytest.fixture
def store(location: str) -> EventStore:
    return EventStore(location)


def put(store: EventStore, stream: str, *numbers: int) -> None:
    store.put(stream, [{"job": RENAMED, "data": f'{{"n":{n},"price":1.50}}'} for n in numbers])


def printed(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.rstrip().split("\n")]


def numbers(out: str) -> list[int]:
    return [json.loads(row["body"])["data"]["n"] for row in printed(out)]


def test_a_store_is_made_and_described(run: Run, store: EventStore, location: str) -> None:
    assert run("events", "create", location) == (0, f"{location} is made\n", "")
    assert run("events", "create", location) == (0, f"{location} was there\n", "")
    put(store, "acme:a", 1, 2)
    put(store, "acme:b", 3)
    DeltaTable(location).optimize.compact()  # one file of several streams
    put(store, "acme:b", 4)
    found = json.loads(run("events", "describe", location, "--json").out)
    size = found.pop("size")
    assert found == {"version": 4, "streams": 2, "events": 4, "files": 2}
    files = pa.table(DeltaTable(location).get_add_actions())["path"].to_pylist()
    assert size == sum(Path(location, file).stat().st_size for file in files)
    assert "streams" in run("events", "describe", location).out


@pytest.mark.parametrize("action", ["describe", "export", "tail", "replay"])
def test_what_is_no_store_is_not_made_one(run: Run, location: str, action: str) -> None:
    done = run("events", action, location, "--url", "redis://127.0.0.1:1", "--queue", "q")
    assert (done.code, done.out) == (1, "")
    assert "is no event store" in done.err
    assert not Path(location).exists()


@pytest.mark.spark
def test_events_are_exported_with_their_bodies_as_they_were(
    spark: Any, run: Run, store: EventStore, location: str
) -> None:
    bodies = [
        envelope(1),
        envelope(2).replace(b",", b",\n "),
        envelope(3, data={"text": "\u2028 q\u00fc \\ud800"}),
    ]
    store.append(spark.createDataFrame([(body,) for body in bodies], "body BINARY"), "acme:b")
    put(store, "acme:a", 7, 8)
    rows = printed(run("events", "export", location).out)
    assert [row["stream"] for row in rows] == ["acme:a"] * 2 + ["acme:b"] * 3
    assert [row["occurred_at"] for row in rows[:2]] == sorted(row["occurred_at"] for row in rows[:2])
    assert sorted(row["body"].encode() for row in rows[2:]) == sorted(bodies)
    assert '"data":{"n":7,"price":1.50}' in rows[0]["body"]
    assert set(rows[0]) == {"stream", "occurred_at", "event_id", "job", "body"}


@pytest.mark.spark
def test_a_stream_is_exported_between_two_times(
    spark: Any, run: Run, store: EventStore, location: str
) -> None:
    put(store, "acme:a", *range(5))
    put(store, "acme:b", 9)
    times = store.slice("acme:a").events["occurred_at"].to_pylist()
    between = ("--since", times[0].isoformat(), "--until", times[3].isoformat())
    assert numbers(run("events", "export", location, "acme:a", *between).out) == [1, 2]


class TestTailing:
    def test_the_last_events(self, run: Run, store: EventStore, location: str) -> None:
        put(store, "acme:a", *range(5))
        put(store, "acme:b", 5)
        put(store, "acme:a", 6)
        tail = ("events", "tail", location)
        assert numbers(run(*tail, "--once", "--json", "--lines", "3").out) == [4, 5, 6]
        assert numbers(run(*tail, "acme:b", "--once", "--json").out) == [5]
        done = run(*tail, "--once", "--lines", "1")
        assert (done.code, done.err) == (0, "")
        last = store.slice("acme:a").events["occurred_at"][-1].as_py()
        assert done.out.startswith(f"{last:%Y-%m-%d %H:%M:%S} ")
        assert f" acme:a {RENAMED} " in done.out

    def test_it_follows_what_is_appended(
        self, run: Run, store: EventStore, location: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(store, "acme:a", 0)
        put(store, "acme:b", 100)

        def compact() -> None:
            DeltaTable(location).optimize.compact()

        steps = iter([lambda: put(store, "acme:a", 1), compact, lambda: put(store, "acme:b", 101)])

        def sleep(_: float) -> None:
            next(steps, lambda: put(store, "acme:a", 2, 3, 4))()

        monkeypatch.setattr(events, "sleep", sleep)
        done = run("events", "tail", location, "acme:a", "--json", "--max", "4")
        assert (done.code, numbers(done.out)) == (0, [0, 1, 2, 3])

    def test_it_ends_when_it_is_interrupted(
        self, run: Run, store: EventStore, location: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(_: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(events, "sleep", interrupted)
        store.create()
        assert run("events", "tail", location) == (130, "", "events: interrupted\n")


@pytest.mark.spark
class TestReplaying:
    def test_events_are_published_again_in_their_order_and_marked(
        self, spark: Any, run: Run, store: EventStore, location: str, redis_server: Any, queue: str
    ) -> None:
        for number in range(4):
            put(store, "acme:a", number)
            put(store, "acme:b", 10 + number)
        ids = store.slice("acme:a").events["event_id"].to_pylist()
        replay = ("events", "replay", location, "--url", redis_server.url, "--queue", queue)
        assert "would go to" in run(*replay, "--dry-run").out
        assert backlog(redis_server.url, queue) == 0
        assert run(*replay).code == 0
        with read_options({"url": redis_server.url, "queue": queue}).binding() as binding:
            found = [row for batch in binding.browse(queue) for row in batch.to_pylist()]
        bodies = [json.loads(row["body"]) for row in found]
        assert [body["meta"]["id"] for body in bodies if body["data"]["n"] < 10] == ids
        assert [body["data"]["n"] for body in bodies if body["data"]["n"] >= 10] == [10, 11, 12, 13]
        assert {tuple(row["headers"]) for row in found} == {(("bq-replay-bypass", "1"),)}
        assert {body["meta"]["queue"] for body in bodies} == {queue}
        assert all(b'"price":1.50' in row["body"] for row in found)

    def test_a_handler_of_the_sdk_knows_a_replay(
        self, spark: Any, run: Run, store: EventStore, location: str, redis_server: Any, queue: str
    ) -> None:
        put(store, "acme:a", 1)
        assert run("events", "replay", location, "--url", redis_server.url, "--queue", queue).code == 0
        app = BabelQueue(redis_server.url, queue=queue)
        app.publish(RENAMED, {"n": 2})
        known: dict[int, bool] = {}

        @app.handler(RENAMED)
        def handle(data: dict[str, Any], meta: dict[str, Any]) -> None:
            known[data["n"]] = is_replay()

        app.consume(queue, max_messages=2, timeout=1.0, handle_signals=False)
        assert known == {1: True, 2: False}

    def test_a_broker_that_keeps_no_mark_takes_no_replay_unless_it_is_asked_to(
        self, spark: Any, run: Run, store: EventStore, location: str, sqlite: str, queue: str
    ) -> None:
        put(store, "acme:a", 1, 2)
        replay = ("events", "replay", location, "--url", sqlite, "--queue", queue)
        done = run(*replay)
        assert done.code == 1
        assert "keeps no headers" in done.err
        assert run(*replay, "--no-bypass").code == 0
        assert backlog(sqlite, queue) == 2

    def test_routes_choose_queues_and_what_has_none_is_said(
        self, spark: Any, run: Run, store: EventStore, location: str, sqlite: str
    ) -> None:
        put(store, "acme:a", 1)
        store.put("acme:a", [{"job": "urn:babel:mails:sent", "data": {"n": 2}}])
        routes = ("--route", "urn:babel:articles:*=articles", "--route", f"{RENAMED}=names")
        done = run("events", "replay", location, "--url", sqlite, "--no-bypass", *routes)
        assert done.code == 0
        assert "(no route)" in done.out
        assert (backlog(sqlite, "articles"), backlog(sqlite, "names")) == (1, 1)

    def test_a_repeat_replays_the_store_as_it_was(
        self, spark: Any, run: Run, store: EventStore, location: str, sqlite: str, queue: str
    ) -> None:
        put(store, "acme:a", 1, 2)
        replay = (
            "events",
            "replay",
            location,
            "--url",
            sqlite,
            "--queue",
            queue,
            "--no-bypass",
            "--txn",
            "again",
        )
        assert run(*replay).code == 0
        put(store, "acme:a", 3)
        DeltaTable(location).optimize.compact()
        assert run(*replay).code == 0
        assert backlog(sqlite, queue) == 2
        assert run(*replay[:-1], "another").code == 0
        assert backlog(sqlite, queue) == 5
