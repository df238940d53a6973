"""Subscribers: who hears of a message and when, what they return, and what becomes of one that raises."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.errors import BabelQueueError, MessageTooLargeError, OptionError, hide
from babelqueue_spark.worker import Message, Outgoing, Publishing, Reject, SqlStore, Worker
from babelqueue_spark.worker.deciding import Decisions, Output
from babelqueue_spark.worker.handlers.routes import MessageHandler, Routes, Subscriber
from babelqueue_spark.worker.handlers.subscribing import EXECUTION_FAILED, LARGEST_ENVELOPE
from babelqueue_spark.worker.outcomes import Outcome
from tests.streams import backlog, envelope, publish
from tests.worker import partitions
from tests.worker.partitions import rows_of
from tests.worker.queues import order, taken, work_off
from tests.worker.test_deciding import Standing

CREATED = "urn:babel:orders:created"


def worker_for(url: str, queue: str, folder: Path, **options: Any) -> Worker:
    publishing = Publishing(failure_queue=f"{queue}-failures")
    return Worker({"url": url}, state=str(folder / "worker"), publishing=publishing, **options)


def bodies(url: str, queue: str, count: int) -> list[dict[str, Any]]:
    return [json.loads(body) for body in taken(url, queue, count)]


def heard(queue: str, name: str) -> Callable[[Message], Outgoing]:
    """A subscriber that tells what it heard."""
    return lambda message: Outgoing(
        job=f"urn:heard:{name}", data={"n": message.data["n"]}, queue=f"{queue}-heard"
    )


# -- on live brokers ---------------------------------------------------------------------------------------


@pytest.mark.spark
def test_every_subscriber_that_matches_hears_of_what_was_handled(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, queue, tmp_path)

    @worker.handler("urn:babel:orders:*")
    def handle(message: Message) -> Outgoing:
        if message.data["n"] == 2:
            raise Reject("bad")
        return heard(queue, "handler")(message)

    worker.subscriber("*")(heard(queue, "all"))
    worker.subscriber(CREATED)(heard(queue, "exact"))
    worker.subscriber("urn:babel:*")(heard(queue, "some"))
    worker.subscriber("urn:babel:mail:*")(heard(queue, "mail"))
    sent = [order(queue, n=n) for n in (1, 2)] + [order(queue, urn="urn:babel:mail:sent", n=3), b"poison"]
    publish(url, queue, sent)
    work_off(spark, worker, url, queue, tmp_path)
    found = bodies(url, f"{queue}-heard", 7)
    assert [(body["job"].removeprefix("urn:heard:"), body["data"]["n"]) for body in found] == [
        *(("handler", 1), ("exact", 1), ("some", 1), ("all", 1)),
        *(("mail", 3), ("some", 3), ("all", 3)),
    ]
    assert (worker.counts.acked, worker.counts.dead_lettered, worker.counts.published) == (2, 2, 7)
    first = json.loads(sent[0])
    for body in found[:4]:
        assert body["trace_id"] == first["trace_id"]
        assert body["meta"]["causation_id"] == first["meta"]["id"]
    assert len({body["meta"]["id"] for body in found}) == 7


@pytest.mark.spark
def test_one_that_raises_becomes_a_message_and_touches_nothing_else(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, queue, tmp_path)
    worker.handler("urn:babel:*")(lambda message: None)

    @worker.subscriber("urn:babel:orders:*")
    def refuses(message: Message) -> None:
        message.data.clear()
        raise LookupError("no such customer " + "x" * 4000)

    worker.subscriber("*")(heard(queue, "all"))
    [sent] = [order(queue, n=7)]
    publish(url, queue, [sent])
    work_off(spark, worker, url, queue, tmp_path)
    assert worker.counts.acked == 1
    assert worker.counts.by[EXECUTION_FAILED, "published", None] == 1
    [event] = bodies(url, f"{queue}-failures", 1)
    original, data = json.loads(sent), event["data"]
    assert (event["job"], event["trace_id"]) == (EXECUTION_FAILED, original["trace_id"])
    assert event["meta"]["causation_id"] == data["id"] == original["meta"]["id"]
    assert (data["exception"], data["pattern"], data["queue"]) == ("LookupError", "urn:babel:orders:*", queue)
    assert data["subscriber"].endswith("refuses")
    assert data["error"].startswith("no such customer xxx")
    assert len(data["error"]) == 2048
    assert ", in refuses\n" in data["stack_trace"]
    assert data["stack_trace"].rstrip().endswith("x" * 100)
    assert data["envelope"] == sent.decode()
    assert [body["data"]["n"] for body in bodies(url, f"{queue}-heard", 1)] == [7]
    assert backlog(url, f"{queue}.dlq") == 0


@pytest.mark.spark
def test_messages_of_a_dataframe_handler_have_subscribers_too(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    worker = worker_for(url, queue, tmp_path)

    @worker.dataframe_handler("urn:babel:orders:*")
    def fine(frame: Any, batch: int) -> None:
        assert frame.count() == 2

    @worker.dataframe_handler("urn:babel:mail:*")
    def fails(frame: Any, batch: int) -> None:
        raise ValueError

    worker.subscriber("*")(heard(queue, "all"))
    publish(url, queue, [order(queue, n=1), order(queue, urn="urn:babel:mail:sent", n=2), order(queue, n=3)])
    work_off(spark, worker, url, queue, tmp_path)
    assert [body["data"]["n"] for body in bodies(url, f"{queue}-heard", 2)] == [1, 3]
    assert (worker.counts.acked, worker.counts.retried) == (2, 1)


@pytest.mark.spark
def test_what_was_handled_before_is_not_heard_of_again(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/handled.db")
    worker = worker_for(url, queue, tmp_path, idempotency=store)
    worker.subscriber("*")(heard(queue, "all"))
    body = order(queue, n=1)
    publish(url, queue, [body, body])
    work_off(spark, worker, url, queue, tmp_path)
    assert (worker.counts.acked, worker.counts.duplicates) == (1, 1)
    assert len(bodies(url, f"{queue}-heard", 1)) == 1


# -- without Spark -----------------------------------------------------------------------------------------


def decided(*subscribers: Any, **rules: Any) -> Decisions:
    """What is decided about one message, whose URN has these subscribers."""
    return decided_about(lambda _: None, *subscribers, **rules)


def decided_about(handler: Any, *subscribers: Any, **given: Any) -> Decisions:
    routes = [MessageHandler("urn:known", handler), *(Subscriber("urn:*", run) for run in subscribers)]
    return partitions.decided(rows_of("urn:known"), *routes, policy=partitions.policy(1), **given)


def data_of(decisions: Decisions) -> list[dict[str, Any]]:
    return [json.loads(output.columns["data"]) for output in decisions.outputs]


def out(**data: Any) -> Outgoing:
    return Outgoing(job="urn:out", data=data, queue="out")


def refusing(*words: str) -> Callable[[Any], None]:
    """Refuse outputs with such a word in them, as a broker does for their size."""

    def check(outputs: list[dict[str, Any]]) -> None:
        if any(word in str(output) for output in outputs for word in words):
            raise MessageTooLargeError("too large")

    return check


def test_a_message_that_fails_in_the_end_is_not_heard_of() -> None:
    called: list[Message] = []
    decisions = decided_about(lambda _: out(text="refused"), called.append, check=refusing("refused"))
    assert decisions.verdicts[0].outcome is Outcome.DEAD_LETTERED
    assert not called
    assert not decisions.outputs


def exits(message: Message) -> None:
    sys.exit("out")


def hangs(message: Message) -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("subscriber", "exception", "rules"),
    [
        (exits, "SystemExit", {}),
        (hangs, "HandlerTimeoutError", {"timeout": 2.0}),
        (lambda _: 7, "BabelQueueError", {}),
        (lambda _: Outgoing(job="urn:x", data={"x": float("nan")}), "ValueError", {}),
        (lambda _: out(text="refused"), "MessageTooLargeError", {"check": refusing('"refused"')}),
    ],
)
def test_whatever_it_raises_or_cannot_publish_is_its_failure(
    subscriber: Any, exception: str, rules: dict[str, Any]
) -> None:
    decisions = decided(subscriber, lambda _: out(n=1), **rules)
    assert decisions.verdicts[0].outcome is Outcome.ACKED
    failure, other = data_of(decisions)
    assert failure["exception"] == exception
    assert other == {"n": 1}


def test_a_failure_that_is_too_large_goes_without_its_longest_parts() -> None:
    failure = data_of(decided(raises, check=refusing('stack_trace":"')))[0]
    assert (failure["stack_trace"], failure["envelope"], failure["error"]) == (None, None, "no")
    rest = decided(raises, check=refusing("causation_id"))
    assert rest.outputs[0].columns["extra"] == {}


def raises(message: Message) -> None:
    raise ValueError("no")


def test_a_large_envelope_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LARGEST_ENVELOPE == 1 << 20
    [failure] = data_of(decided(raises))
    assert failure["envelope"] == envelope(0).decode() or json.loads(failure["envelope"])["job"]
    monkeypatch.setattr("babelqueue_spark.worker.handlers.subscribing.LARGEST_ENVELOPE", 10)
    assert data_of(decided(raises))[0]["envelope"] is None


def test_a_failure_shows_no_secret_and_no_half_of_a_surrogate_pair(caplog: pytest.LogCaptureFixture) -> None:
    hide("s3cret-w0rd", "env:PASSWORD")

    def leaks(message: Message) -> None:
        raise ValueError("login with s3cret-w0rd \ud800")

    [failure] = data_of(decided(leaks))
    assert failure["error"] == "login with env:PASSWORD \\ud800"
    shown = failure["stack_trace"] + caplog.text
    assert "s3cret-w0rd \\ud800" not in shown.replace('raise ValueError("login with', "")
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("subscriber.failed {")


def test_a_claim_lasts_for_all_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("babelqueue_spark.worker.admission.time.monotonic", lambda: now)
    claims: list[float] = []

    class Counting(Standing):
        def claim(self, ids: Any, owner: str) -> Any:
            claims.append(now)
            return super().claim(ids, owner)

    def slow(message: Message) -> None:
        nonlocal now
        now += Standing.lease / 2 + 1

    decided(slow, slow, slow, store=Counting("granted"))
    assert claims == [1_000, 1_031, 1_062]


def test_the_message_of_a_subscriber_is_its_own() -> None:
    decisions = decided(lambda message: message.data.clear(), lambda message: out(**message.data))
    assert data_of(decisions) == [{"order_id": 0}]


def test_a_wildcard_does_not_hear_of_failures() -> None:
    routes = Routes()
    for pattern in ("*", "urn:*", EXECUTION_FAILED):
        routes.subscribe(Subscriber(pattern, print))
    assert [subscriber.pattern for subscriber in routes.subscribers(EXECUTION_FAILED)] == [EXECUTION_FAILED]
    assert len(routes.subscribers("urn:a")) == 2


def test_a_queue_of_replies_has_nothing_else() -> None:
    outputs = tuple(Output(row, {"queue": queue, "reply": True}) for row, queue in enumerate("aab"))
    decisions = Decisions((), outputs)
    assert decisions.reply_queues({"a": [0, 1], "b": [2, 3]}) == ["a"]


def test_subscribers_that_cannot_be() -> None:
    worker = Worker({"url": "redis://localhost"}, state="/nowhere")
    with pytest.raises(OptionError, match="needs a queue for what they raise"):
        worker.subscriber("urn:a")(print)
    publishing = Publishing(failure_queue="failures")
    worker = Worker({"url": "redis://localhost"}, state="/nowhere", publishing=publishing)
    with pytest.raises(OptionError, match="a subscriber needs a URN"):
        worker.subscriber(" ")(print)
    assert issubclass(OptionError, BabelQueueError)
