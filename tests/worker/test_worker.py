"""What a user of the worker sees beside the outcomes: handlers of both kinds, counters, errors that help."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

import babelqueue_spark.worker
from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import MissingPackageError, OptionError
from babelqueue_spark.worker import Backoff, Counts, Message, Outgoing, Reject, Retry, SqlStore, Worker
from babelqueue_spark.worker.events import log
from babelqueue_spark.worker.handlers.routes import MessageHandler, Routes
from babelqueue_spark.worker.outcomes import Failure, Outcome, Policy, Verdict
from babelqueue_spark.worker.rows import INPUT, Rows
from babelqueue_spark.worker.worker import _was_stopped
from tests.streams import backlog, publish
from tests.worker.handlers import hang
from tests.worker.queues import order, taken, work_off


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def worker_for(url: str, folder: Path, **options: Any) -> Worker:
    return Worker({"url": url}, state=str(folder / "worker"), **options)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


RAISED: list[tuple[Callable[[], BaseException], str]] = [
    (asyncio.CancelledError, "CancelledError"),
    (lambda: BaseException("of a library"), "BaseException"),
    (UnspeakableError, "UnspeakableError"),
    (lambda: Retry("much later", after=1e300), "Retry"),
]


@pytest.mark.spark
def test_whatever_a_handler_raises_is_a_verdict(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(url, queue, [order(queue, n=n) for n in range(len(RAISED))])
    last = worker_for(url, tmp_path / "last", policy=Policy(max_attempts=1))
    later = worker_for(url, tmp_path / "later", policy=Policy(max_attempts=9, backoff=[1e300]))
    for worker in (later, last):

        @worker.handler("urn:*")
        def handle(message: Message) -> None:
            raise RAISED[message.data["n"]][0]()

    work_off(spark, later, url, queue, tmp_path / "later")
    assert later.counts.retried == len(RAISED)
    publish(url, f"{queue}-b", [order(queue, n=n) for n in range(len(RAISED))])
    work_off(spark, last, url, f"{queue}-b", tmp_path / "last")
    letters = [json.loads(body) for body in taken(url, f"{queue}-b.dlq", len(RAISED))]
    assert {each["data"]["n"]: each["dead_letter"]["exception"] for each in letters} == {
        n: name for n, (_, name) in enumerate(RAISED)
    }


# -- routes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "pattern"),
    [
        ("urn:a:b", "urn:a:b"),
        ("urn:a:bc", "urn:a:b*"),
        ("urn:a:x", "urn:a:*"),
        ("urn:b:end", "urn:*"),
        ("x:end", "*:end"),
        ("urn:b:x", "urn:*"),
        ("urn:a:\nb", "urn:a:*"),
        ("else", None),
        ("urn:a.b", "urn:*"),
    ],
)
def test_exact_urns_come_first_and_then_the_longest_pattern(job: str, pattern: str | None) -> None:
    patterns = ["urn:*", "urn:a:*", "urn:a:b", "urn:a:b*", "*:end"]
    routes = Routes(MessageHandler(each, print) for each in patterns)
    found = routes.of(job)
    assert (found and found.pattern) == pattern


def test_a_pattern_with_several_stars_is_tried_in_linear_time() -> None:
    routes = Routes([MessageHandler("urn:*a*a*a*a*a*b", print)])
    assert routes.of("urn:" + "a" * 20_000) is None


def test_handlers_that_cannot_be() -> None:
    worker = Worker({"url": "redis://localhost"}, state="/nowhere")
    worker.handler("urn:a")(print)
    with pytest.raises(OptionError, match="has a handler already"):
        worker.dataframe_handler("urn:a")(print)
    with pytest.raises(OptionError, match="needs a URN"):
        worker.handler(" ")(print)

    async def later(_: Message) -> None: ...

    with pytest.raises(OptionError, match="DataFrame handler of 'urn:b' is an async function"):
        worker.dataframe_handler("urn:b")(later)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"max_attempts": 0}, "at least 1"),
        ({"unknown_urn": "ignore"}, "fail, delete, release, dead_letter"),
        ({"backoff": [1, -1]}, "0 or more"),
        ({"release_delay": 0}, "spins hot"),
    ],
)
def test_a_policy_that_cannot_be(policy: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Policy(**policy)


def test_a_timeout_is_time_that_fits_into_a_lease() -> None:
    store = SqlStore("sqlite://", lease=60)
    worker = partial(Worker, {"url": "redis://localhost"}, state="/nowhere", idempotency=store)
    for give in (
        lambda seconds: worker(handler_timeout=seconds),
        lambda seconds: worker().dataframe_handler("urn:*", timeout=seconds),
    ):
        give(30)
        for seconds, says in ((31, "twice as long"), (0, "more than 0"), (-1, "more than 0")):
            with pytest.raises(OptionError, match=says):
                give(seconds)


def test_a_store_whose_client_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("babelqueue_spark.worker.import_module", missing)
    with pytest.raises(MissingPackageError, match=r"babelqueue-spark\[redis\]"):
        _ = babelqueue_spark.worker.RedisStore


def missing(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named 'redis', wanted by {name}", name="redis")


def test_over_connect_a_worker_needs_its_querys_checkpoint(tmp_path: Path) -> None:
    frame = SimpleNamespace(sparkSession=object())
    (tmp_path / "other").mkdir()
    (tmp_path / "other/metadata").write_text("{}")
    for checkpoint, says in (
        (None, "give it checkpoint="),
        (str(tmp_path), "no query's id"),
        (f"{tmp_path}/other", "no query's id"),
    ):
        worker = Worker({"url": "sqlite://"}, state=f"{tmp_path}/journal", checkpoint=checkpoint)
        with pytest.raises(OptionError, match=says):
            worker(frame, 0)  # type: ignore[arg-type]


def test_retry_takes_seconds() -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        Retry(after=-1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"job": 7}, "job takes a text"),
        ({"queue": b"orders"}, "queue takes a text"),
        ({"trace_id": 1}, "trace_id takes a text"),
        ({"key": 1}, "key takes a text"),
        ({"key": "\ud800"}, "key has half a surrogate pair"),
        ({"headers": {"x": 1}}, "a header takes a text"),
        ({"headers": {1: "x"}}, "a header takes a text"),
        ({"delay": -1}, "delay takes a number of seconds"),
        ({"delay": float("nan")}, "delay takes a number of seconds"),
    ],
)
def test_an_outgoing_message_that_cannot_be_says_so_where_it_is_made(given: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        Outgoing(**{"job": "urn:x", "data": {}, **given})


def test_a_reason_is_a_text() -> None:
    with pytest.raises(TypeError, match="reason takes a text"):
        Reject(ValueError("x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("the JVM is gone"),
        RuntimeError("[SPARK_JOB_CANCELLED] Job 7 cancelled"),
        RuntimeError("Job 7 cancelled because SparkContext was shut down"),
        RuntimeError("Cannot call methods on a stopped SparkContext."),
        RuntimeError("[OPERATION_CANCELED] Operation has been canceled."),
        RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed."),
        RuntimeError("<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE>"),
    ],
)
def test_spark_that_stops_is_no_failure_of_a_dataframe_handler(error: Exception) -> None:
    assert _was_stopped(error)
    assert not _was_stopped(RuntimeError("no table"))


# -- decisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ([1, 5, 15], [1, 5, 15, 15]),
        ([], [0, 0, 0, 0]),
        ([0.5], [0.5, 0.5, 0.5, 0.5]),
        (Backoff(base=2, multiplier=3, longest=10), [2, 6, 10, 10]),
    ],
)
def test_delays(backoff: Any, delays: list[float]) -> None:
    policy = Policy(max_attempts=99, backoff=backoff)
    assert [policy.failed(attempts, Failure()).delay for attempts in range(4)] == delays


def test_the_largest_count_stays_one() -> None:
    policy = Policy(backoff=[])
    assert policy.failed(2**31 - 1, Failure()).attempts == 2**31 - 1


def test_a_long_error_is_cut_and_a_broken_one_is_text() -> None:
    assert len(Failure.of(ValueError("x" * 5000)).error or "") == 1001
    assert Failure.of(ValueError("a\ud800")).error == "a\\ud800"
    assert Failure.of(ValueError()).error is None


def test_failures_travel() -> None:
    failure = Failure.of(Reject("bad", "why"))
    assert pickle.loads(pickle.dumps(failure)) == failure
    assert (failure.reason, failure.final) == ("bad", True)


def test_a_log_line_holds_no_line_break(caplog: pytest.LogCaptureFixture) -> None:
    row = dict.fromkeys(INPUT.names) | {
        "body": b"",
        "queue": "q",
        "job": "urn:x\nfake",
        "trace_id": "t",
    }
    rows = Rows([pa.RecordBatch.from_pylist([row], INPUT)])
    with caplog.at_level(logging.INFO, "babelqueue_spark.worker"):
        log(Verdict(Outcome.RETRIED, 1, "failed", "no\nmoney", "E", 5.0), rows, 0)
        log(Verdict(Outcome.ACKED, 0), rows, 0)
    retry, ack = caplog.records
    assert (retry.levelname, ack.levelname) == ("WARNING", "INFO")
    assert "\n" not in retry.getMessage()
    event, _, content = retry.getMessage().partition(" ")
    assert event == "job.retry"
    assert json.loads(content)["delay"] == 5.0
    assert ack.getMessage().startswith("job.ack {")


# -- message handlers --------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_message_has_all_parts(spark: Any, redis_server: Any, queue: str, tmp_path: Path) -> None:
    url = redis_server.url
    body = (
        order(queue, n=1)
        .replace(b'"meta":{', b'"meta":{"shard":7,')
        .replace(b'"attempts":0', b'"attempts":1')
    )
    empty = order(queue, urn="urn:empty").replace(b'"data":{}', b'"data":[]')
    rows = [{"body": body, "headers": [("traceparent", "tp"), ("bq-replay-bypass", "1")]}, {"body": empty}]
    with read_options({"url": url, "queue": queue}).binding() as binding:
        binding.publish(queue, pa.RecordBatch.from_pylist(rows, OUTGOING))
    worker = worker_for(url, tmp_path)

    @worker.handler("urn:babel:*")
    def handle(message: Message) -> Outgoing:
        seen = {
            "data": message.data,
            "shard": message.meta["shard"],
            "attempts": message.attempts,
            "replay": message.is_replay,
            "queue": message.queue,
            "id": message.id,
            "body": message.body.decode(),
        }
        return Outgoing(job="urn:seen", data=seen, queue=f"{queue}-seen", headers={"mine": "x"})

    @worker.handler("urn:empty")
    def nothing(message: Message) -> None:
        assert message.data == {}
        assert not message.is_replay

    work_off(spark, worker, url, queue, tmp_path, allowEmptyListData="true")
    assert worker.counts.acked == 2
    with read_options({"url": url, "queue": queue}).binding() as binding:
        seen = binding.claim(f"{queue}-seen", 1, 1 << 20)
    [answer] = (json.loads(found) for found in seen.column("body").to_pylist())
    assert answer["data"] == {
        "data": {"n": 1},
        "shard": 7,
        "attempts": 1,
        "replay": True,
        "queue": queue,
        "id": json.loads(body)["meta"]["id"],
        "body": body.decode(),
    }
    assert answer["trace_id"] == json.loads(body)["trace_id"]
    assert dict(seen.column("headers").to_pylist()[0]) == {"traceparent": "tp", "mine": "x"}


@pytest.mark.spark
def test_headers_stay_beside_retries_and_dead_letters(
    spark: Any, redis_server: Any, queue: str, tmp_path: Path
) -> None:
    url = redis_server.url
    worker = worker_for(url, tmp_path)

    @worker.handler("urn:*")
    def handle(message: Message) -> None:
        raise Reject if message.data["n"] else ValueError

    rows = [{"body": order(queue, n=n), "headers": [("traceparent", f"{n}")]} for n in range(2)]
    with read_options({"url": url, "queue": queue}).binding() as binding:
        binding.publish(queue, pa.RecordBatch.from_pylist(rows, OUTGOING))
        work_off(spark, worker, url, queue, tmp_path)
        for place, header in ((queue, "0"), (f"{queue}.dlq", "1")):
            [headers] = binding.claim(place, 1, 1 << 20).column("headers").to_pylist()
            assert dict(headers) == {"traceparent": header}


@pytest.mark.spark
def test_a_partition_shares_what_its_setup_opens(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    worker = worker_for(url, tmp_path)
    note = tmp_path / "opened"

    @contextmanager
    def connection() -> Iterator[list[int]]:
        with note.open("a") as file:
            file.write("opened ")
            shared: list[int] = []
            yield shared
            file.write(f"closed with {sorted(shared)}")

    @worker.handler("urn:babel:*", partition_setup=connection)
    def handle(message: Message, shared: list[int]) -> None:
        shared.append(message.data["n"])

    @worker.handler("urn:nobody", partition_setup=connection)
    def never(message: Message, shared: list[int]) -> None: ...

    publish(url, queue, [order(queue, n=n) for n in range(3)])
    work_off(spark, worker, url, queue, tmp_path)
    assert note.read_text() == "opened closed with [0, 1, 2]"


# -- DataFrame handlers ------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_dataframe_handler_writes_tables_and_replies(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, tmp_path)
    table = str(tmp_path / "table")

    @worker.dataframe_handler("urn:babel:orders:*", data_schema="n BIGINT, price DECIMAL(10,2)")
    def save(frame: Any, batch: int) -> Any:
        frame.select("data.*", "trace_id").write.mode("overwrite").parquet(f"{table}/batch={batch}")
        return frame.where("data.n = 1").selectExpr(
            "'urn:saved' AS job", f"'{queue}-saved' AS queue", "to_json(struct(data.n)) AS data", "trace_id"
        )

    @worker.handler("urn:mail")
    def mail(message: Message) -> None:
        raise Reject

    orders = [order(queue, n=n, price="1.50") for n in range(3)]
    publish(url, queue, [*orders, order(queue, urn="urn:mail"), b"poison"])
    work_off(spark, worker, url, queue, tmp_path)
    saved = spark.read.parquet(table).orderBy("n").collect()
    assert [(row.n, str(row.price)) for row in saved] == [(n, "1.50") for n in range(3)]
    [reply] = (json.loads(body) for body in taken(url, f"{queue}-saved", 1))
    assert (reply["data"], reply["trace_id"]) == ({"n": 1}, json.loads(orders[1])["trace_id"])
    assert (worker.counts.acked, worker.counts.dead_lettered, worker.counts.read) == (3, 2, 5)


@pytest.mark.spark
def test_what_a_dataframe_handler_did_stands_when_the_batch_is_repeated(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    publish(url, queue, [order(queue, urn="urn:frame", n=1), order(queue, urn="urn:message", n=2)])
    calls: list[int] = []

    def attempt(setup: Any) -> Worker:
        worker = worker_for(url, tmp_path)
        worker.dataframe_handler("urn:frame")(lambda frame, batch: calls.append(frame.count()))
        worker.handler("urn:message", partition_setup=setup)(lambda message, _: None)
        work_off(spark, worker, url, queue, tmp_path)
        return worker

    with pytest.raises(StreamingQueryException, match="no connection"):
        attempt(no_connection)
    assert attempt(nullcontext).counts.acked == 2
    assert calls == [1]


def no_connection() -> Any:
    raise ConnectionError("no connection")


@pytest.mark.spark
def test_when_a_dataframe_handler_raises_its_messages_failed_and_no_others(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, tmp_path, policy=Policy(max_attempts=2))

    @worker.dataframe_handler("urn:raises")
    def raises(frame: Any, _: int) -> None:
        frame.selectExpr("raise_error('no table')").collect()

    @worker.dataframe_handler("urn:rejects")
    def rejects(*_: Any) -> None:
        raise Reject("bad_batch", "why")

    @worker.dataframe_handler("urn:waits")
    def waits(*_: Any) -> None:
        raise Retry(after=3600)

    @worker.dataframe_handler("urn:*")
    def fine(frame: Any, _: int) -> None:
        assert frame.count() == 1

    urns = ["urn:raises", "urn:rejects", "urn:waits", "urn:fine"]
    bodies = [order(queue, urn=urn) for urn in urns]
    again = order(queue, urn="urn:raises").replace(b'"attempts":0', b'"attempts":1')
    publish(url, queue, [*bodies, again])
    work_off(spark, worker, url, queue, tmp_path)
    assert taken(url, queue, 1) == [bodies[0].replace(b'"attempts":0', b'"attempts":1')]
    blocks = {(b := json.loads(body))["job"]: b["dead_letter"] for body in taken(url, f"{queue}.dlq", 2)}
    assert blocks["urn:rejects"]["reason"] == "bad_batch"
    assert (blocks["urn:raises"]["reason"], blocks["urn:raises"]["attempts"]) == ("failed", 2)
    assert "no table" in blocks["urn:raises"]["error"]
    assert (worker.counts.acked, worker.counts.retried, worker.counts.dead_lettered) == (1, 2, 2)


def wait_in_spark(frame: Any, _: int) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hang()
        yield from batches

    frame.select("job").mapInArrow(slow, "job string").collect()


@pytest.mark.spark
def test_a_dataframe_handler_that_never_returns_is_cancelled(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, tmp_path)
    worker.dataframe_handler("urn:*", timeout=2)(wait_in_spark)
    publish(url, queue, [order(queue)])
    work_off(spark, worker, url, queue, tmp_path)
    assert worker.counts.retried == 1


@pytest.mark.spark
def test_what_a_dataframe_handler_in_time_returns_is_published(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, tmp_path)

    @worker.dataframe_handler("urn:*", timeout=60)
    def copy(frame: Any, _: int) -> Any:
        frame.select("job", "data").write.format("babelqueue").options(
            url=url, queue=f"{queue}-written"
        ).mode("append").save()
        return frame.selectExpr("job", "data", f"'{queue}-returned' AS queue")

    publish(url, queue, [order(queue), order(queue)])
    work_off(spark, worker, url, queue, tmp_path)
    assert worker.counts.acked == 2
    assert (backlog(url, f"{queue}-written"), backlog(url, f"{queue}-returned")) == (2, 2)


@pytest.mark.spark
def test_one_that_is_late_and_returns_has_handled_its_messages(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, tmp_path)
    worker.dataframe_handler("urn:*", timeout=0.1)(lambda *_: threading.Event().wait(0.5) or None)
    publish(url, queue, [order(queue)])
    work_off(spark, worker, url, queue, tmp_path)
    assert (worker.counts.acked, worker.counts.retried) == (1, 0)


@pytest.mark.spark
def test_one_that_waits_for_something_else_fails_the_query_and_loses_nothing(
    spark: Any, url: str, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("babelqueue_spark.worker.handlers.timeouts._GRACE_SECONDS", 0.1)
    worker = worker_for(url, tmp_path)
    forever = threading.Event()
    worker.dataframe_handler("urn:*", timeout=0.1)(lambda *_: forever.wait())
    body = order(queue, n=1)
    publish(url, queue, [body])
    with pytest.raises(Exception, match="does not end"):
        work_off(spark, worker, url, queue, tmp_path)
    forever.set()
    again = worker_for(url, tmp_path)
    again.handler("urn:*")(lambda message: None)
    work_off(spark, again, url, queue, tmp_path)
    assert again.counts.acked == 1


# -- what users see ----------------------------------------------------------------------------------------


@pytest.mark.spark
def test_executors_log_an_event_for_each_message(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    worker = worker_for(url, tmp_path, policy=Policy(unknown_urn="delete"))
    path = tmp_path / "log"

    @contextmanager
    def logged() -> Iterator[None]:
        logger = logging.getLogger("babelqueue_spark.worker")
        handler = logging.FileHandler(path)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        yield
        logger.removeHandler(handler)

    @worker.handler("urn:babel:*", partition_setup=logged)
    def handle(message: Message, _: None) -> None:
        if message.data["n"]:
            raise [Reject, ValueError][message.data["n"] - 1]

    publish(url, queue, [*(order(queue, n=n) for n in range(3)), order(queue, urn="urn:else")])
    work_off(spark, worker, url, queue, tmp_path)
    events = [line.partition(" ")[0] for line in path.read_text().splitlines()]
    assert events == ["job.ack", "job.dead_letter", "job.retry", "job.dropped"]


@pytest.mark.spark
def test_counters_of_each_batch_and_of_all(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    told: list[tuple[int, Counts]] = []
    policy = Policy(unknown_urn="delete")
    worker = worker_for(url, tmp_path, policy=policy, on_batch=lambda *args: told.append(args))
    worker.handler("urn:babel:*")(lambda message: None)
    for round_ in range(2):
        publish(url, queue, [order(queue) for _ in range(round_ + 1)] + [order(queue, urn="urn:else")])
        work_off(spark, worker, url, queue, tmp_path)
    assert [(number, counts.acked, counts.dropped) for number, counts in told] == [(0, 1, 1), (1, 2, 1)]
    assert json.loads(json.dumps(worker.counts.as_dict()))["acked"] == 3
    summary = [tuple(row) for row in worker.summary(spark).collect()]
    assert summary == [
        ("urn:babel:orders:created", "acked", None, 3),
        ("urn:else", "dropped", "unknown_urn", 2),
    ]


@pytest.mark.spark
def test_a_dataframe_that_is_no_stream(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    worker = worker_for(url, tmp_path)
    worker.handler("urn:*")(lambda message: None)
    publish(url, queue, [order(queue), b"poison"])
    frame = spark.read.format("babelqueue").options(url=url, queue=queue).load()
    counts = worker.run(frame)
    assert (counts.acked, counts.dead_lettered) == (1, 1)
    assert backlog(url, f"{queue}.dlq") == 1
    assert [path for path in (tmp_path / "worker").rglob("*") if path.is_file()] == []
    with pytest.raises(OptionError, match="use run"):
        worker(frame, 0)
    with pytest.raises(OptionError, match="delivery, error is missing"):
        worker.run(frame.drop("error", "delivery"))


@pytest.mark.spark
def test_ledgers_of_former_batches_go(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    worker = worker_for(url, tmp_path)
    worker.handler("urn:*")(lambda message: None)
    for _ in range(3):
        publish(url, queue, [order(queue)])
        work_off(spark, worker, url, queue, tmp_path)
    [run] = (tmp_path / "worker").iterdir()
    assert [folder.name for folder in run.iterdir()] == ["0000000002"]


@pytest.mark.spark
def test_a_broker_that_is_down_loses_nothing(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    """The queue is one broker's, and retries go to another one, which does not answer."""
    body = order(queue, n=1)
    publish(url, queue, [body])
    runs = tmp_path / "runs"

    def fails(_: Message) -> None:
        with runs.open("a") as file:
            file.write("x")
        raise ValueError

    down = Worker({"url": "redis://127.0.0.1:1/0"}, state=str(tmp_path / "worker"))
    down.handler("urn:*")(fails)
    with pytest.raises(Exception, match="cannot be reached"):
        work_off(spark, down, url, queue, tmp_path)
    up = worker_for(url, tmp_path)
    up.handler("urn:*")(fails)
    work_off(spark, up, url, queue, tmp_path)
    assert taken(url, queue, 1) == [body.replace(b'"attempts":0', b'"attempts":1')]
    assert runs.read_text() == "x", "what was decided before the broker went is not decided again"


@pytest.mark.spark
def test_no_secret_is_shown(spark: Any, queue: str, tmp_path: Path) -> None:
    worker = Worker({"url": "redis://:s3cret@127.0.0.1:1/0"}, state=str(tmp_path / "worker"))
    worker.handler("urn:*")(lambda message: 1 / 0)
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, queue, [order(queue)])
    with pytest.raises(Exception, match="cannot be reached") as raised:
        work_off(spark, worker, url, queue, tmp_path)
    written = "".join(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    assert "s3cret" not in f"{raised.value}{worker!r}{written}"
