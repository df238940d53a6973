"""Requests and replies: between an asker and a responder on live brokers, and what goes wrong between them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.connector.options import read_options, write_options
from babelqueue_spark.errors import BabelQueueError, OptionError, RequestFailedError, RequestTimeoutError
from babelqueue_spark.exchange import ask
from babelqueue_spark.testing import eventually
from babelqueue_spark.worker import Message, Reject, Retry, Worker
from babelqueue_spark.worker.handlers.calls import Step
from babelqueue_spark.worker.handlers.responder import Responder
from babelqueue_spark.worker.messages import REPLY_TO_HEADER
from tests.brokers import url_of
from tests.streams import backlog, publish, stream
from tests.worker.queues import order, taken, work_off

PRICE = "urn:babel:orders:price"
BROKERS = ["sqlite", "redis", "rabbitmq"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def answering(url: str, folder: Path, **options: Any) -> Worker:
    """A worker that knows prices, and fails as it is asked to."""
    worker = Worker({"url": url}, state=str(folder / "worker"), **options)

    @worker.responder("urn:babel:orders:*")
    def price(message: Message) -> Any:
        match message.data["do"]:
            case "raise":
                raise LookupError("no such\nproduct")
            case "reject":
                raise Reject("sold_out", "none left")
            case "retry" if not message.attempts:
                raise Retry("later")
            case "return nothing":
                return None
            case "return half a surrogate pair":
                return {"text": "\ud800"}
        return {"price": "9.90", "trace": message.trace_id, "request": message.id}

    return worker


@contextmanager
def at_work(spark: Any, worker: Worker, url: str, queue: str, folder: Path) -> Iterator[None]:
    query = (
        stream(spark, url, queue, folder)
        .writeStream.foreachBatch(worker)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        yield
    finally:
        query.stop()


@pytest.mark.spark
@pytest.mark.parametrize("broker", BROKERS)
def test_a_request_is_answered(
    spark: Any, broker: str, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    url = url_of(broker, request, tmp_path)
    options = {"url": url, "queue": queue}
    with at_work(spark, answering(url, tmp_path), url, queue, tmp_path):
        reply = ask(options, PRICE, {"do": "answer", "text": "ü"}, timeout=120)
        assert (reply.job, reply.data["price"]) == (f"{PRICE}:reply", "9.90")
        assert reply.trace_id == reply.data["trace"]
        assert reply.meta["causation_id"] == reply.data["request"]
        assert ask(options, PRICE, {"do": "retry"}, timeout=120).data["price"] == "9.90"
        with pytest.raises(RequestFailedError, match="raised LookupError: no such product") as raised:
            ask(options, PRICE, {"do": "raise"}, timeout=120)
        assert (raised.value.exception, raised.value.error) == ("LookupError", "no such\nproduct")
        with pytest.raises(RequestFailedError, match="none left") as raised:
            ask(options, PRICE, {"do": "reject"}, timeout=120)
        assert raised.value.reason == "sold_out"
        with pytest.raises(RequestFailedError, match="TypeError: a responder returns the data"):
            ask(options, PRICE, {"do": "return nothing"}, timeout=120)
        with pytest.raises(RequestFailedError, match="UnicodeEncodeError"):
            ask(options, PRICE, {"do": "return half a surrogate pair"}, timeout=120)
    assert backlog(url, f"{queue}.dlq") == 0


def test_without_a_responder_time_runs_out(url: str, queue: str) -> None:
    with pytest.raises(RequestTimeoutError, match=f"no reply to '{PRICE}' came within 0 s.*'{queue}'"):
        ask({"url": url, "queue": queue}, PRICE, {}, timeout=0)
    assert backlog(url, queue) == 1


@pytest.mark.server
@pytest.mark.parametrize("broker", BROKERS)
def test_only_the_first_reply_to_this_request_counts(
    broker: str,
    request: pytest.FixtureRequest,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = url_of(broker, request, tmp_path)
    mine, late = (str(uuid.uuid4()) for _ in range(2))
    monkeypatch.setattr("babelqueue_spark.exchange.asking.uuid", SimpleNamespace(uuid4=lambda: mine))
    replies = [reply_to(late, 1), b"no envelope", order("replies", n=2), reply_to(mine, 3), reply_to(mine, 4)]
    publish(url, f"{queue}-replies", replies)
    reply = ask({"url": url, "queue": queue}, PRICE, {}, timeout=30, reply_queue=f"{queue}-replies")
    assert reply.data == {"n": 3}
    assert backlog(url, f"{queue}-replies") == 0


def reply_to(request_id: str, n: int) -> bytes:
    """A reply as another SDK writes it."""
    made = EnvelopeCodec.make("urn:any", {"n": n}, meta={"causation_id": request_id})
    return str(EnvelopeCodec.encode(made)).encode()


@pytest.mark.server
def test_a_header_names_the_request_as_well(
    redis_server: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, mine = redis_server.url, str(uuid.uuid4())
    monkeypatch.setattr("babelqueue_spark.exchange.asking.uuid", SimpleNamespace(uuid4=lambda: mine))
    replies = [
        {"body": order("replies", n=n), "headers": [("correlation-id", of)]}
        for n, of in enumerate(("another", mine))
    ]
    with read_options({"url": url, "queue": queue}).binding() as binding:
        binding.publish(f"{queue}-replies", pa.RecordBatch.from_pylist(replies, OUTGOING))
    reply = ask({"url": url, "queue": queue}, PRICE, {}, timeout=30, reply_queue=f"{queue}-replies")
    assert reply.data == {"n": 1}


@pytest.mark.server
@pytest.mark.parametrize(("broker", "place"), [("sqlite", "meta"), ("redis", "header")])
def test_the_reply_queue_is_named_in_a_header_where_the_broker_keeps_headers(
    broker: str, place: str, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    url = url_of(broker, request, tmp_path)
    with pytest.raises(RequestTimeoutError):
        ask({"url": url, "queue": queue}, PRICE, {}, timeout=0, reply_queue="here")
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        batch = binding.claim(queue, 1, 1 << 20)
    [headers] = batch.column("headers").to_pylist()
    [body] = batch.column("body").to_pylist()
    assert dict(headers or ()) == ({"reply-to": "here"} if place == "header" else {})
    assert json.loads(body)["meta"].get("reply_to") == ("here" if place == "meta" else None)


@pytest.mark.server
@pytest.mark.parametrize(("broker", "headers"), [("sqlite", {}), ("redis", {"traceparent": "00-a-b-01"})])
def test_a_request_follows_from_another_message(
    broker: str, headers: dict[str, str], request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    url = url_of(broker, request, tmp_path)
    meta = {"causation_id": "c", "tenant": {"name": "é"}}
    given = {"trace_id": "trace", "headers": headers, "meta": meta, "reply_queue": "here", "timeout": 0}
    with pytest.raises(RequestTimeoutError):
        ask({"url": url, "queue": queue}, PRICE, {"sku": "é", "n": 1}, **given)
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        batch = binding.claim(queue, 1, 1 << 20)
    [body] = batch.column("body").to_pylist()
    envelope = json.loads(body)
    assert envelope["trace_id"] == "trace"
    assert meta.items() <= envelope["meta"].items()
    assert body == json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode()
    assert headers.items() <= dict(batch.column("headers").to_pylist()[0] or ()).items()


def test_what_a_request_cannot_hold_is_refused(url: str, queue: str) -> None:
    options = {"url": url, "queue": queue}
    with pytest.raises(OptionError, match=f"the data of '{PRICE}' cannot be JSON"):
        ask(options, PRICE, {"n": float("nan")})
    with pytest.raises(OptionError, match=f"the meta of '{PRICE}' has id, which the envelope sets"):
        ask(options, PRICE, {}, meta={"id": "mine"})
    with pytest.raises(BabelQueueError, match="keeps no headers"):
        ask(options, PRICE, {}, headers={"tenant": "a"})
    assert backlog(url, queue) == 0


def test_line_breaks_of_a_foreign_message_stay_out_of_the_log(
    url: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = json.loads(reply_to("another", 1))
    foreign["meta"]["id"] = "x\nWARNING forged"
    publish(url, f"{queue}-replies", [json.dumps(foreign).encode()])
    caplog.set_level("INFO")
    with pytest.raises(RequestTimeoutError):
        ask({"url": url, "queue": queue}, PRICE, {}, timeout=0, reply_queue=f"{queue}-replies")
    [line] = [record.getMessage() for record in caplog.records if "ignored message" in record.getMessage()]
    assert "\n" not in line


def test_a_request_for_which_there_is_no_way(url: str) -> None:
    with pytest.raises(OptionError, match="needs the option 'queue'"):
        ask({"url": url}, PRICE, {})
    with pytest.raises(OptionError, match="a reply_queue other than 'queue'"):
        ask({"url": url, "queue": "orders"}, PRICE, {}, reply_queue="orders")
    with pytest.raises(OptionError, match="nothing can be taken out of it"):
        ask({"url": "kafka://127.0.0.1:1", "queue": "orders"}, PRICE, {})


@pytest.mark.spark
def test_a_request_that_names_no_queue_is_a_dead_letter(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    long = order(queue, urn=PRICE, do="answer").replace(
        b'"meta":{', b'"meta":{"reply_to":"' + b"x" * 300 + b'",'
    )
    number = order(queue, urn=PRICE, do="answer").replace(b'"meta":{', b'"meta":{"reply_to":7,')
    publish(url, queue, [order(queue, urn=PRICE, do="answer"), long, number])
    work_off(spark, answering(url, tmp_path), url, queue, tmp_path)
    found = [json.loads(body)["dead_letter"] for body in taken(url, f"{queue}.dlq", 3)]
    assert {block["reason"] for block in found} == {"no_reply_to"}


@pytest.mark.spark
@pytest.mark.parametrize(("broker", "beside"), [("redis", ":delayed"), ("rabbitmq", ".delay.5000")])
def test_a_request_that_names_what_is_no_queue_is_a_dead_letter(
    spark: Any, request: pytest.FixtureRequest, queue: str, tmp_path: Path, broker: str, beside: str
) -> None:
    url = url_of(broker, request, tmp_path)
    requests = [
        {"body": order(queue, urn=PRICE, do="answer"), "headers": [("reply-to", f"{queue}{to}")]}
        for to in (beside, "-replies")
    ]
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        binding.publish(queue, pa.RecordBatch.from_pylist(requests, OUTGOING))
        assert binding.backlog(f"{queue}-replies") == 0
    work_off(spark, answering(url, tmp_path), url, queue, tmp_path)
    [letter] = taken(url, f"{queue}.dlq", 1)
    block = json.loads(letter)["dead_letter"]
    assert block["reason"] == "no_reply_to"
    assert "is not the name of a queue" in block["error"]
    assert len(taken(url, f"{queue}-replies", 1)) == 1


@pytest.mark.parametrize(
    "to", ["https://sqs.eu-west-1.amazonaws.com/1/replies", "arn:aws:sqs:eu-west-1:1:replies"]
)
def test_a_request_does_not_name_a_queue_of_another_account_of_sqs(to: str) -> None:
    """It is refused before the user's function runs."""
    request = Message(PRICE, "trace", "id", 0, "orders", b"{}", {REPLY_TO_HEADER: to}, None)
    run: list[Message] = []
    step = Step(lambda: run.append(request), is_async=False, is_inline=True)
    answering = Responder(write_options({"url": "sqs://eu-west-1"})).reply(request, step)
    with pytest.raises(Reject, match="of this account alone") as refused:
        next(answering)
    assert (refused.value.reason, run) == ("no_reply_to", [])


@pytest.mark.spark
def test_a_reply_that_its_queue_does_not_take_holds_up_nothing(
    spark: Any, rabbitmq_server: Any, queue: str, tmp_path: Path
) -> None:
    url = rabbitmq_server.url
    requests = [
        {"body": order(queue, urn=PRICE, do="answer"), "headers": [("reply-to", to)]}
        for to in ("amq.nobody", f"{queue}-replies", f"{queue}-nobodys")
    ]
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        binding.publish(queue, pa.RecordBatch.from_pylist(requests, OUTGOING))
        assert binding.backlog(f"{queue}-replies") == 0
    worker = answering(url, tmp_path)
    work_off(spark, worker, url, queue, tmp_path)
    assert worker.counts.acked == 3
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        [headers] = binding.claim(f"{queue}-replies", 2, 1 << 20).column("headers").to_pylist()
        assert binding.missing(f"{queue}-nobodys")
    assert dict(headers)["correlation-id"] == json.loads(requests[1]["body"])["meta"]["id"]


@pytest.mark.server
def test_a_reply_queue_of_rabbitmq_goes_by_itself(rabbitmq_server: Any, queue: str) -> None:
    import pika

    with read_options({"url": rabbitmq_server.url, "queue": queue}).queue_binding() as binding:
        binding.make_temporary(queue, 0.5)
        publish(rabbitmq_server.url, queue, [order(queue)])
        assert binding.backlog(queue) == 1

    def gone() -> bool:
        """Whether nothing takes a message for it; to ask for the queue would be a use."""
        with pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            try:
                channel.basic_publish("", queue, b"", mandatory=True)
            except pika.exceptions.UnroutableError:
                return True
        return False

    eventually(gone)
