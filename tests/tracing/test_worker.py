"""One trace from a producer of the published SDK through a worker to a consumer of the SDK, on Redis."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from babelqueue import BabelQueue, otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span
from pyspark.errors import StreamingQueryException

from babelqueue_spark.worker import Message, Outgoing, Publishing, Worker
from tests.streams import run, stream
from tests.tracing.exporting import spans_in, to_file
from tests.worker.handlers import CardDeclinedError

pytestmark = pytest.mark.spark

CARD = "4111-1111-1111-1111"


class Sdk:
    """An application of the SDK whose spans are kept in memory."""

    def __init__(self, url: str, queue: str) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("sdk")
        self.app = BabelQueue(url, queue=queue)

    def publish(self, urn: str, data: Mapping[str, Any], **headers: str) -> ReadableSpan:
        """Publish with the SDK's span, and other headers beside."""
        otel.publish(self.tracer, _With(self.app, headers), urn, data)
        return self._kept.get_finished_spans()[-1]

    def consume(self, queue: str, *urns: str) -> list[ReadableSpan]:
        """The SDK's spans of the messages in a queue."""
        before = len(self._kept.get_finished_spans())
        for urn in urns:
            self.app.register(urn, otel.wrap_handler(self.tracer, lambda data, meta: None))
        self.app.consume(queue, max_messages=len(urns), timeout=1.0, handle_signals=False)
        return list(self._kept.get_finished_spans()[before:])


class _With:
    def __init__(self, app: BabelQueue, headers: Mapping[str, str]) -> None:
        self._app = app
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def publish_with_headers(self, urn: str, data: Any, headers: Any, **options: Any) -> str:
        return self._app.publish_with_headers(urn, data, {**headers, **self._headers}, **options)


def forward(message: Message) -> Outgoing:
    return Outgoing(job="urn:babel:orders:charged", data=message.data, queue=message.data["to"])


def decline(message: Message) -> None:
    raise CardDeclinedError(f"no money on {message.data['card']}")


def total(message: Message) -> dict[str, Any]:
    if message.data.get("card"):
        raise CardDeclinedError(f"no money on {message.data['card']}")
    return {"total": 1}


def watch(message: Message) -> None:
    raise LookupError("nobody watches")


def names(context: Any) -> tuple[str, str]:
    return f"0x{context.trace_id:032x}", f"0x{context.span_id:016x}"


def one(spans: list[dict[str, Any]], name: str, parent: str) -> dict[str, Any]:
    [found] = [span for span in spans if span["name"] == name and span["parent_id"] == parent]
    return found


def worker_for(url: str, folder: Path, **options: Any) -> Worker:
    return Worker({"url": url}, state=str(folder / "worker"), **options)


def test_a_trace_leads_from_the_sdk_through_the_worker_to_the_reply(
    spark: Any, redis_server: Any, queue: str, tmp_path: Path
) -> None:
    url, out, file = redis_server.url, f"{queue}-out", tmp_path / "spans"
    sdk = Sdk(url, queue)
    begun = {
        "forward": sdk.publish("urn:babel:orders:created", {"to": out}),
        "request": sdk.publish("urn:babel:orders:total", {}, reply_to=out),
        "declined": sdk.publish("urn:babel:orders:total", {"card": CARD}, reply_to=out),
        "raises": sdk.publish("urn:babel:cards:used", {"card": CARD}),
    }
    sdk.app.publish("urn:babel:orders:created", {"to": f"{out}-2"}, trace_id="trace-1")
    publishing = Publishing(failure_queue=f"{queue}-failures")
    worker = worker_for(url, tmp_path, tracing=partial(to_file, str(file)), publishing=publishing)
    worker.handler("urn:babel:orders:created")(forward)
    worker.handler("urn:babel:cards:used")(decline)
    worker.responder("urn:babel:orders:total")(total)
    worker.subscriber("urn:babel:orders:created")(watch)
    run(stream(spark, url, queue, tmp_path, numPartitions="1"), tmp_path, worker)
    assert (worker.counts.acked, worker.counts.retried) == (4, 1)

    spans = spans_in(file)
    replies = {span.parent.span_id: span for span in sdk.consume(out, *REPLIES) if span.parent}
    for what, exception in (("forward", None), ("request", None), ("declined", "CardDeclinedError")):
        trace, first = names(begun[what].context)
        *_, handled = sorted(
            (span for span in spans if span["parent_id"] == first),
            key=lambda span: "messaging.babelqueue.subscriber" not in span["attributes"],
        )
        send = one(spans, f"send {out}", handled["context"]["span_id"])
        last = replies[int(send["context"]["span_id"], 16)]
        assert {handled["context"]["trace_id"], send["context"]["trace_id"], names(last.context)[0]} == {
            trace
        }
        assert handled["attributes"].get("error.type") == exception
        assert handled["attributes"]["messaging.message.id"] == begun[what].attributes["messaging.message.id"]
        assert send["attributes"]["messaging.message.id"] == last.attributes["messaging.message.id"]

    handled = one(spans, f"process {queue}", names(begun["raises"].context)[1])
    assert (handled["kind"], handled["status"]) == ("SpanKind.CONSUMER", {"status_code": "ERROR"})
    assert handled["attributes"] == {
        "messaging.system": "redis",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": begun["raises"].attributes["messaging.message.id"],
        "messaging.message.conversation_id": otel.uuid_of(begun["raises"].context.trace_id),
        "messaging.babelqueue.attempts": 0,
        "messaging.babelqueue.job": "urn:babel:cards:used",
        "error.type": "CardDeclinedError",
    }
    assert CARD not in file.read_text()

    derived = get_current_span(otel._parent_context("trace-1")).get_span_context()
    subscribed, handled = sorted(
        (span for span in spans if span["parent_id"] == names(derived)[1]),
        key=lambda span: "messaging.babelqueue.subscriber" not in span["attributes"],
    )
    assert subscribed["attributes"]["messaging.babelqueue.subscriber"] == "watch"
    assert subscribed["attributes"]["error.type"] == "LookupError"
    one(spans, f"send {queue}-failures", subscribed["context"]["span_id"])
    assert handled["context"]["trace_id"] == subscribed["context"]["trace_id"] == names(derived)[0]
    send = one(spans, f"send {out}-2", handled["context"]["span_id"])
    assert (send["kind"], send["status"]) == ("SpanKind.PRODUCER", {"status_code": "UNSET"})
    assert {key: send["attributes"][key] for key in send["attributes"] if "message.id" not in key} == {
        "messaging.system": "redis",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": f"{out}-2",
    }

    [batch] = [span for span in spans if span["name"] == "foreachBatch"]
    assert batch["attributes"]["messaging.batch.message_count"] == 5
    linked = {(link["context"]["trace_id"], link["context"]["span_id"]) for link in batch["links"]}
    assert linked == {*(names(span.context) for span in begun.values()), names(derived)}
    assert {link["context"]["span_id"] for span in spans for link in span["links"] if span != batch} == {
        batch["context"]["span_id"]
    }

    # The retry comes below the same span of the SDK, with its attempt.
    worker.run(spark.read.format("babelqueue").options(url=url, queue=queue).load())
    _, again = [span for span in spans_in(file) if span["parent_id"] == names(begun["raises"].context)[1]]
    assert again["attributes"]["messaging.babelqueue.attempts"] == 1
    made = Path(f"{file}.made").read_text().split()
    assert len(made) == len(set(made))
    assert str(os.getpid()) in made


REPLIES = ["urn:babel:orders:charged", "urn:babel:orders:total:reply", "urn:babel:worker:request_failed"]


def test_what_is_published_after_a_failure_goes_in_the_span_that_was_decided(
    spark: Any, redis_server: Any, queue: str, tmp_path: Path
) -> None:
    url, out, file = redis_server.url, f"{queue}-out", tmp_path / "spans"
    Sdk(url, queue).publish("urn:babel:orders:created", {"to": out})
    worker = worker_for(url, tmp_path, tracing=partial(to_file, str(file)))
    worker.handler("urn:babel:orders:created")(forward)
    with redis.Redis.from_url(url) as client:
        client.set(out, "no list")
        with pytest.raises(StreamingQueryException):
            run(stream(spark, url, queue, tmp_path), tmp_path, worker)
        client.delete(out)
    run(stream(spark, url, queue, tmp_path), tmp_path, worker)
    [row] = spark.read.format("babelqueue").options(url=url, queue=out).load().collect()
    *failed, sent = [span for span in spans_in(file) if span["name"] == f"send {out}"]
    trace, span = (sent["context"][name].removeprefix("0x") for name in ("trace_id", "span_id"))
    assert row.headers["traceparent"].startswith(f"00-{trace}-{span}-")
    assert failed
    assert {str(span["context"]) for span in failed} == {str(sent["context"])}
    assert all("error.type" in span["attributes"] for span in failed)
    assert "error.type" not in sent["attributes"]
    assert len([span for span in spans_in(file) if span["name"] == f"process {queue}"]) == 1
    batches = [span for span in spans_in(file) if span["name"] == "foreachBatch"]
    assert [span["attributes"].get("error.type") is None for span in batches] == [False, True]
