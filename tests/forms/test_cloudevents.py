"""CloudEvents: what the published SDK writes is read, and what we write is read by it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from cloudevents.core.bindings.kafka import (
    KafkaMessage,
    from_binary_event,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent

from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.forms import form_of

EVENTS = form_of("cloudevents")
MADE = datetime(2026, 11, 25, 9, 30, 0, 123000, UTC)
ATTRIBUTES = {
    "id": "7",
    "source": "/shop",
    "type": "order.created",
    "time": MADE,
    "subject": "eu",
    "datacontenttype": "application/json",
    "tenant": "müller",
}


def read(body: bytes, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    pairs = pa.array([[*(headers or {}).items()] or None], pa.map_(pa.string(), pa.string()))
    messages = pa.RecordBatch.from_arrays([pa.array([body], pa.binary()), pairs], ["body", "headers"])
    [row] = EVENTS.decode(messages).to_pylist()
    return dict(row)


def assert_is_the_event(row: dict[str, Any]) -> None:
    assert (row["job"], json.loads(row["data"]), row["error"]) == ("order.created", {"order_id": 1}, None)
    assert (row["meta"]["id"], row["meta"]["created_at"]) == ("7", MADE)
    extra = {name: json.loads(text) for name, text in row["meta"]["extra"]}
    assert {name: extra[name] for name in ("source", "subject", "tenant")} == {
        "source": "/shop",
        "subject": "eu",
        "tenant": "müller",
    }


@pytest.mark.parametrize("mode", [to_structured_event, to_binary_event])
def test_events_of_the_published_sdk_are_read(mode: Any) -> None:
    sent: KafkaMessage = mode(CloudEvent(dict(ATTRIBUTES), {"order_id": 1}))
    headers = {name: value.decode() for name, value in sent.headers.items()}
    body = sent.value if isinstance(sent.value, bytes) else str(sent.value).encode()
    assert_is_the_event(read(body, headers))
    data, meta = EVENTS.content(body, headers)
    assert (data, meta["id"], meta["source"]) == ({"order_id": 1}, "7", "/shop")


@pytest.mark.parametrize(
    ("envelope", "parsed"),
    [("cloudevents", from_structured_event), ("cloudevents-binary", from_binary_event)],
)
def test_the_published_sdk_reads_what_we_write(envelope: str, parsed: Any) -> None:
    options = write_options({"url": "kafka://127.0.0.1:1", "queue": "orders", "envelope": envelope})
    extra = [("source", '"/shop"'), ("subject", '"eu"'), ("tenant", '"müller"'), ("retries", "3")]
    meta = pa.struct(
        [
            ("id", pa.string()),
            ("created_at", pa.timestamp("us", "UTC")),
            ("extra", pa.map_(pa.string(), pa.string())),
        ]
    )
    rows = pa.RecordBatch.from_pydict(
        {
            "job": pa.array(["order.created"]),
            "data": pa.array(['{"order_id":1}']),
            "trace_id": pa.array(["trace-1"]),
            "meta": pa.array([{"id": "7", "created_at": MADE, "extra": extra}], meta),
        }
    )
    with options.binding() as binding:
        [message] = to_messages(rows, 0, IdSource("t"), options, binding)["orders"].to_pylist()
    headers = {name: value.encode() for name, value in message["headers"]}
    event = parsed(KafkaMessage(headers=headers, key=None, value=message["body"]))
    assert (event.get_id(), event.get_source(), event.get_type()) == ("7", "/shop", "order.created")
    assert (event.get_subject(), event.get_time(), event.get_data()) == ("eu", MADE, {"order_id": 1})
    assert event.get_extension("tenant") == "müller"
    row = read(message["body"], dict(message["headers"]))
    assert row["trace_id"] == "trace-1"
    assert_is_the_event(row)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "poison"),
        (b"[]", "poison"),
        (b'{"job":"urn:a","data":{}}', "poison"),
        (b'{"specversion":"0.3","type":"a","id":"1","source":"/"}', "unsupported_schema_version"),
        (b'{"specversion":7,"type":"a","id":"1","source":"/"}', "unsupported_schema_version"),
        (b'{"specversion":"1.0","type":" ","id":"1","source":"/"}', "missing_urn"),
        (b'{"specversion":"1.0","type":"a","id":7,"source":"/"}', "missing_meta"),
        (b'{"specversion":"1.0","type":"a","id":"1"}', "missing_meta"),
    ],
)
def test_what_is_no_event_has_an_error(body: bytes, error: str) -> None:
    assert read(body)["error"] == error


def test_data_that_is_no_json_is_read_as_base64_or_refused() -> None:
    event = b'{"specversion":"1.0","type":"a","id":"1","source":"/","data_base64":"AQI=","time":"soon"}'
    row = read(event)
    assert (row["data"], row["error"], row["meta"]["created_at"]) == ('"AQI="', None, None)
    named = {"ce_specversion": "1.0", "ce_type": "a", "ce_id": "1", "ce_source": "/"}
    assert read(b"\xff", named)["error"] == "invalid_data"
    assert EVENTS.content(b'{"specversion":"1.0","type":"a","id":"1","source":"/"}', {})[0] is None


def test_the_trace_of_an_event_is_that_of_its_traceparent() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    event = {"specversion": "1.0", "type": "a", "id": "1", "source": "/", "traceparent": parent}
    assert read(json.dumps(event).encode())["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
