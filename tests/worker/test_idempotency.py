"""Messages handled once: the stores, the conformance section, and duplicates in and across batches."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing import eventually
from babelqueue_spark.worker import (
    IdempotencyStore,
    Message,
    Outgoing,
    Policy,
    Record,
    RedisStore,
    SqlStore,
    Worker,
)
from tests.brokers import url_of
from tests.envelope.conformance import fixture, manifest
from tests.servers import RedisServer
from tests.streams import publish
from tests.worker.queues import order, taken, work_off

Make = Callable[..., IdempotencyStore]
A, B = "a" * 32, "b" * 32
GRANTED, HELD, HANDLED = Record("granted"), Record("held"), Record("handled")


@pytest.fixture(params=["sqlite", "redis", "postgresql", "mariadb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes stores that share their content with each other, and with no other test's."""
    url = url_of(request.param, request, tmp_path)
    name = f"t{time.time_ns()}"
    if request.param == "redis":
        return lambda **options: RedisStore(url, prefix=f"{name}:", **options)
    return lambda **options: SqlStore(url, table=name, **options)


def test_claims_and_records(make: Make) -> None:
    with make() as one, make() as other:
        assert one.claim(["x", "y"], A) == [GRANTED, GRANTED]
        assert one.claim(["y", "x"], A) == [GRANTED, GRANTED]
        assert other.claim(["x", "z"], B) == [HELD, GRANTED]
        one.remember("x", A, b"\x00result")
        assert other.claim(["x"], B) == [HANDLED]
        assert other.claim(["x"], A) == [Record("handled", ours=True, result=b"\x00result")]
        other.release(["x", "y", "z"], B)
        assert other.claim(["x", "y", "z"], B) == [HANDLED, HELD, GRANTED]
        one.release(["y"], A)
        assert other.claim(["y"], B) == [GRANTED]
        one.forget(["x"])
        assert other.claim(["x"], B) == [GRANTED]


def test_a_claim_of_php_is_none_of_ours(redis_server: RedisServer) -> None:
    name = uuid.uuid4().hex
    with Redis(port=redis_server.port) as php, RedisStore(redis_server.url) as store:
        php.set(f"bq:idemp:{name}", "1", ex=300)
        assert store.claim([name], A) == [GRANTED]
        store.release([name], A)


def test_all_messages_of_a_large_partition_can_fail(make: Make) -> None:
    ids = [str(number) for number in range(300_000)]
    with make() as store:
        store.claim(["7", "299999"], A)
        store.release(ids, A)
        assert store.claim(["7", "299999"], B) == [GRANTED, GRANTED]


def test_what_was_not_claimed_can_be_remembered(make: Make) -> None:
    with make() as store:
        store.remember("x", A)
        assert store.claim(["x"], B) == [HANDLED]


@pytest.mark.parametrize("message_id", ["", " ", "é" * 300, "X", "x", "\ud800", "a'b\"%_\\", "1\n2"])
def test_any_id_is_an_id_of_its_own(make: Make, message_id: str) -> None:
    with make() as store:
        store.remember(message_id, A)
        assert store.claim([message_id, f"{message_id}~", message_id.swapcase() + " "], B) == [
            HANDLED,
            GRANTED,
            GRANTED,
        ]


def test_a_lease_ends_and_so_does_what_is_remembered(make: Make) -> None:
    with make(lease=1, keep=1) as store:
        assert store.claim(["x"], A) == [GRANTED]
        store.remember("y", A)
        eventually(lambda: store.claim(["x", "y"], B) == [GRANTED, GRANTED])


def claimed_by(store: IdempotencyStore, owner: str, ids: list[str], results: Any) -> None:
    results.put([record.standing for record in store.claim(ids, owner)].count("granted"))


@pytest.mark.slow
def test_one_of_many_processes_gets_each_claim(make: Make) -> None:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    ids = [f"id-{number}" for number in range(500)]
    processes = [
        context.Process(target=claimed_by, args=(make(), f"{number}" * 32, ids, results))
        for number in range(4)
    ]
    for process in processes:
        process.start()
    granted = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(granted) == len(ids)


def test_a_store_travels_without_its_connection(make: Make) -> None:
    with make() as store:
        store.claim(["x"], A)
        with pickle.loads(pickle.dumps(store)) as copy:
            assert copy.claim(["x"], B) == [HELD]


@pytest.mark.parametrize(
    "store",
    [
        RedisStore("redis://:s3cret@127.0.0.1:1/0"),
        SqlStore("postgresql+psycopg://user:s3cret@127.0.0.1:1/db"),
    ],
)
def test_a_store_out_of_reach_is_a_clear_error(store: IdempotencyStore) -> None:
    with pytest.raises(BrokerError, match="cannot be reached") as raised:
        store.claim(["x"], A)
    assert "s3cret" not in f"{raised.value}{store!r}"


# -- with a worker -----------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "redis", "rabbitmq"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def store(url: str, queue: str, tmp_path: Path) -> IdempotencyStore:
    name = queue.replace("-", "_")
    if url.startswith("redis"):
        return RedisStore(url, prefix=f"{name}:")
    return SqlStore(f"sqlite:///{tmp_path}/handled.db", table=name)


def effect(folder: Path, name: str) -> None:
    """Leave a trace that another process can see, whole or not at all."""
    with (folder / "effects").open("a") as file:
        file.write(f"{name}\n")


def effects(folder: Path) -> list[str]:
    path = folder / "effects"
    return path.read_text().splitlines() if path.exists() else []


def worker_with(url: str, folder: Path, store: IdempotencyStore, max_attempts: int = 3) -> Worker:
    policy = Policy(max_attempts=max_attempts, release_delay=1)
    worker = Worker({"url": url}, state=str(folder / "worker"), policy=policy, idempotency=store)

    @worker.handler("urn:*")
    def handle(message: Message) -> None:
        effect(folder, message.data.get("case", message.id))
        if message.data.get("fails"):
            raise ValueError("fails")

    return worker


SEQUENCES = manifest()["idempotency"]["sequences"]["cases"]


def delivered(queue: str, case: str, delivery: dict[str, Any]) -> bytes:
    """An envelope with the id of a delivery, which is another one in another case."""
    envelope = json.loads(order(queue, case=case, fails=delivery.get("outcome") == "throw"))
    envelope["meta"]["id"] = delivery["meta_id"] and f"{case} {delivery['meta_id']}"
    return json.dumps(envelope).encode()


@pytest.mark.spark
def test_conformance(spark: Any, url: str, queue: str, store: IdempotencyStore, tmp_path: Path) -> None:
    """All sequences side by side: the first deliveries of all in a batch, then the second ones, and so on."""
    worker = worker_with(url, tmp_path, store, max_attempts=1)
    expected: list[str] = []
    for step in range(max(len(case["deliveries"]) for case in SEQUENCES)):
        now = [
            (case["name"], case["deliveries"][step]) for case in SEQUENCES if step < len(case["deliveries"])
        ]
        for name, delivery in now:
            if delivery.get("forget_before"):
                store.forget([f"{name} {delivery['meta_id']}"])
        publish(url, queue, [delivered(queue, name, delivery) for name, delivery in now])
        work_off(spark, worker, url, queue, tmp_path)
        expected += [name for name, delivery in now if delivery["expect_effect"] == "run"]
        assert sorted(effects(tmp_path)) == sorted(expected)
    assert Counter(expected) == {case["name"]: case["expected_effects"] for case in SEQUENCES}
    assert worker.counts.duplicates == sum(len(case["deliveries"]) for case in SEQUENCES) - len(expected)


@pytest.mark.spark
def test_conformance_of_the_key(
    spark: Any, url: str, queue: str, store: IdempotencyStore, tmp_path: Path
) -> None:
    section = manifest()["idempotency"]["dedup_key"]
    body = fixture(section["envelope_file"])
    trace_id = json.loads(body)["trace_id"].encode()
    other = body.replace(section["expected_key"].encode(), b"another-message")
    assert trace_id in other
    publish(url, queue, [body, body, other])
    worker = worker_with(url, tmp_path, store)
    work_off(spark, worker, url, queue, tmp_path)
    assert sorted(effects(tmp_path)) == ["another-message", section["expected_key"]]
    assert store.claim([section["expected_key"]], A) == [HANDLED]


@pytest.mark.spark
def test_what_another_worker_is_at_comes_back_later(
    spark: Any, url: str, queue: str, store: IdempotencyStore, tmp_path: Path
) -> None:
    body = order(queue)
    message_id = json.loads(body)["meta"]["id"]
    store.claim([message_id], B)
    publish(url, queue, [body])
    worker = worker_with(url, tmp_path, store)
    work_off(spark, worker, url, queue, tmp_path)
    assert effects(tmp_path) == []
    assert (
        worker.counts.released,
        worker.counts.by["urn:babel:orders:created", "released", "in_flight"],
    ) == (1, 1)
    store.release([message_id], B)
    assert taken(url, queue, 1) == [body]


@pytest.mark.spark
def test_a_failed_message_is_handled_when_it_comes_again(
    spark: Any, url: str, queue: str, store: IdempotencyStore, tmp_path: Path
) -> None:
    publish(url, queue, [order(queue, fails=True)])
    worker = worker_with(url, tmp_path, store)
    for _ in range(3):
        work_off(spark, worker, url, queue, tmp_path)
    assert len(effects(tmp_path)) == 3
    assert (worker.counts.retried, worker.counts.dead_lettered) == (2, 1)


@pytest.mark.spark
def test_duplicates_do_not_reach_a_dataframe_handler(
    spark: Any, url: str, queue: str, store: IdempotencyStore, tmp_path: Path
) -> None:
    bodies = [order(queue, n=n) for n in range(3)]
    worker = Worker({"url": url}, state=str(tmp_path / "worker"), idempotency=store)
    seen: list[list[int]] = []

    @worker.dataframe_handler("urn:*", data_schema="n INT")
    def handle(frame: Any, _: int) -> None:
        seen.append(sorted(row.n for row in frame.select("data.n").collect()))

    publish(url, queue, [*bodies, bodies[0]])
    work_off(spark, worker, url, queue, tmp_path)
    publish(url, queue, [bodies[1], order(queue, n=3)])
    work_off(spark, worker, url, queue, tmp_path)
    assert seen == [[0, 1, 2], [3]]
    assert (worker.counts.acked, worker.counts.duplicates) == (4, 2)


@pytest.mark.spark
def test_a_reply_that_cannot_be_sent_is_a_failure_that_is_not_remembered(
    spark: Any, url: str, queue: str, store: IdempotencyStore, tmp_path: Path
) -> None:
    worker = Worker({"url": url}, state=str(tmp_path / "worker"), idempotency=store)

    @worker.handler("urn:*")
    def handle(message: Message) -> Outgoing:
        urn = "urn:reply" if message.attempts else ""
        return Outgoing(job=urn, data={"n": message.data["n"]}, queue=f"{message.queue}-replies")

    publish(url, queue, [order(queue, n=1)])
    for _ in range(2):
        work_off(spark, worker, url, queue, tmp_path)
    assert (worker.counts.retried, worker.counts.acked, worker.counts.duplicates) == (1, 1, 0)
    [reply] = taken(url, f"{queue}-replies", 1)
    assert json.loads(reply)["data"] == {"n": 1}


@pytest.mark.spark
def test_what_a_handler_returned_before_a_crash_is_published_though_it_does_not_run_again(
    spark: Any, url: str, queue: str, store: IdempotencyStore, tmp_path: Path
) -> None:
    worker = Worker({"url": url}, state=str(tmp_path / "worker"), idempotency=store)

    @worker.handler("urn:*")
    def handle(message: Message) -> Outgoing:
        if message.data["n"] == 2 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        effect(tmp_path, str(message.data["n"]))
        return Outgoing(job="urn:reply", data={"to": message.data["n"]}, queue=f"{message.queue}-replies")

    publish(url, queue, [order(queue, n=n) for n in range(4)])
    work_off(spark, worker, url, queue, tmp_path, numPartitions=1)
    assert (tmp_path / "died").exists()
    assert effects(tmp_path) == ["0", "1", "2", "3"]
    replies = [json.loads(body)["data"]["to"] for body in taken(url, f"{queue}-replies", 4)]
    assert sorted(replies) == [0, 1, 2, 3]
    assert worker.counts.acked == 4


@pytest.mark.spark
def test_a_store_that_is_down_loses_nothing(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(url, queue, [order(queue)])
    down = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(Exception, match="cannot be reached"):
        work_off(spark, worker_with(url, tmp_path, down), url, queue, tmp_path)
    assert effects(tmp_path) == []
    again = worker_with(url, tmp_path, SqlStore(f"sqlite:///{tmp_path}/handled.db"))
    work_off(spark, again, url, queue, tmp_path)
    assert len(effects(tmp_path)) == 1
