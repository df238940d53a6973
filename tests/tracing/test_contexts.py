"""The trace contexts of messages, compared with those of the published SDK."""

from __future__ import annotations

import uuid

import pytest
from babelqueue import otel
from babelqueue.headers import _headers_scope
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import get_current_span

from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.tracing import Tracing, with_traceparents
from babelqueue_spark.tracing.contexts import derived, sent, span_id_of, trace_id_of
from babelqueue_spark.worker import Message
from tests.streams import envelope

TRACE_IDS = [
    "0b1f1d2e-7a0c-4c7e-9b7a-3f1f6f0a9c55",
    "0B1F1D2E7A0C4C7E9B7A3F1F6F0A9C55",
    str(uuid.UUID(int=0)),
    "trace-1",
    "größe",
    "z" * 32,
    "12 34 56 78 90 12 34 56 78 90 12",
    "-",
]
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACEPARENTS = [
    None,
    "",
    "00-ab-cd-01",
    PARENT,
    f" {PARENT} ",
    PARENT.upper(),
    PARENT[:-2] + "00",
    PARENT[:-2] + "03",
    f"ff{PARENT[2:]}",
    f"01{PARENT[2:]}",
    f"{PARENT}-more",
    f"01{PARENT[2:]}-more",
    f"00-{'0' * 32}-00f067aa0ba902b7-01",
    f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
]


@pytest.mark.parametrize("trace_id", TRACE_IDS)
def test_a_trace_id_stands_for_the_context_that_the_sdk_derives(trace_id: str) -> None:
    theirs = get_current_span(otel._parent_context(trace_id)).get_span_context()
    assert (trace_id_of(trace_id), span_id_of(trace_id)) == (theirs.trace_id, theirs.span_id)
    assert derived(trace_id) == f"00-{theirs.trace_id:032x}-{theirs.span_id:016x}-01"


@pytest.mark.parametrize("trace_id", ["", "trace-1"])
@pytest.mark.parametrize("tracestate", [None, "vendor=1", "no list"])
@pytest.mark.parametrize("traceparent", TRACEPARENTS)
def test_the_parent_is_that_of_the_sdk(
    traceparent: str | None, tracestate: str | None, trace_id: str
) -> None:
    named = {"traceparent": traceparent, "tracestate": tracestate, "other": "1"}
    sent_with = {name: value for name, value in named.items() if value is not None}
    spans = Tracing.of(lambda: TracerProvider(sampler=ALWAYS_ON)).spans("redis")
    message = Message("urn:a", trace_id, None, 0, "orders", b"", sent_with, None)
    with _headers_scope(sent_with):
        theirs = otel._remote_parent_from_headers()
    if theirs is None and trace_id:
        theirs = otel._parent_context(trace_id)
    with spans.process(message, None):
        ours = get_current_span().parent  # type: ignore[attr-defined]
    expected = None if theirs is None else get_current_span(theirs).get_span_context()
    assert ours == expected
    assert ours is None or ours.trace_state == expected.trace_state


def test_a_message_sent_again_has_the_same_context() -> None:
    assert sent(PARENT, "a", "1") == sent(PARENT, "a", "1")
    others = {sent(PARENT, queue, message_id) for queue in "ab" for message_id in "12"}
    assert len(others) == 4
    assert all(each.startswith(PARENT[:36]) and each.endswith("-01") for each in others)
    assert sent(PARENT[:-1] + "0", "a", "1").endswith("-00")


def test_messages_keep_the_context_that_they_have() -> None:
    bodies = [envelope(n, trace_id=f"trace-{n}") for n in range(3)] + [b"{"]
    headers = [None, {"traceparent": PARENT, "x": "y"}, {"x": "y"}, None]
    messages = outgoing(4, body=bodies, headers=[each and list(each.items()) for each in headers])
    traced, sends = with_traceparents(messages, "orders", headers=True)
    found = [dict(each or ()) for each in traced.column("headers").to_pylist()]
    assert found == [
        {"traceparent": sends[0]["traceparent"]},
        headers[1],
        {"x": "y", "traceparent": sends[1]["traceparent"]},
        {},
    ]
    assert [send["parent"] for send in sends] == [derived("trace-0"), derived("trace-2")]
    assert traced.drop_columns(["headers"]) == messages.drop_columns(["headers"])
    without, same = with_traceparents(messages, "orders", headers=False)
    assert (without, same) == (messages, sends)
