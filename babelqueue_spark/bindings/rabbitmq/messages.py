"""Envelopes as AMQP messages: the contract's properties and headers, and what a reader makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pika
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.base import deliveries
from babelqueue_spark.bindings.rabbitmq.link import Message
from babelqueue_spark.envelope import decode

_SHORT_STRING = 255
"""Bytes that `type`, `correlation_id`, `message_id` and the names of headers may have."""

_OTHERS = ("reply_to", "expiration", "priority", "user_id")
"""Properties that neither repeat the body nor have a column; headers under `amqp.<name>`."""


def properties(messages: pa.RecordBatch) -> Iterator[pika.BasicProperties]:
    """The properties of `OUTGOING` messages: what stands in the body, where it has the contract's type."""
    envelopes = decode(messages.column("body"))
    meta = envelopes.column("meta")
    columns = (
        envelopes.column("job"),
        envelopes.column("trace_id"),
        pc.struct_field(meta, "id"),
        pc.struct_field(meta, "schema_version"),
        pc.struct_field(meta, "lang"),
        envelopes.column("attempts"),
        messages.column("headers"),
    )
    for job, trace_id, message_id, version, lang, attempts, headers in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        known = any(value is not None for value in (job, trace_id, message_id, version, attempts))
        contract = {"x-schema-version": version, "x-source-lang": lang, "x-attempts": attempts or 0}
        yield pika.BasicProperties(
            content_type="application/json",
            content_encoding="utf-8" if known else None,
            delivery_mode=2,
            type=_short(job),
            correlation_id=_short(trace_id),
            message_id=_short(message_id),
            app_id="babelqueue" if known else None,
            headers=_table(headers or (), contract if known else {}),
        )


def received(messages: Sequence[Message], epoch: str = "") -> pa.RecordBatch:
    """`DELIVERIES` of messages; their receipts are tags on the channel `epoch`, null without one."""
    return deliveries(
        len(messages),
        body=[message.body for message in messages],
        headers=[_headers(message.properties) for message in messages],
        id=[_id(message.properties.message_id) for message in messages],
        count=[_count(message) for message in messages],
        redelivered=[message.redelivered for message in messages],
        enqueued_at=[_time(message.properties.timestamp) for message in messages],
        receipt=[f"{epoch}:{message.tag}".encode() for message in messages] if epoch else None,
    )


def tags(claimed: pa.RecordBatch, epoch: str) -> list[int | None]:
    """The delivery tags of receipts, None where they are of another channel."""
    receipts = (receipt.decode().partition(":") for receipt in claimed.column("receipt").to_pylist())
    return [int(tag) if channel == epoch else None for channel, _, tag in receipts]


def _short(text: str | None) -> str | None:
    return text if text is not None and len(text.encode()) <= _SHORT_STRING else None


def _table(headers: Sequence[tuple[str, str]], contract: Mapping[str, Any]) -> dict[str, Any]:
    table = {name: value for name, value in headers if name and value and _short(name)}
    table.update((name, value) for name, value in contract.items() if value is not None)
    return table


def _headers(given: pika.BasicProperties) -> list[tuple[str, str]] | None:
    found = [
        (_text(name), _text(value)) for name, value in (given.headers or {}).items() if value is not None
    ]
    for name in _OTHERS:
        value = getattr(given, name)
        if value is not None:
            found.append((f"amqp.{name}", str(value)))
    return found or None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, default=_text)
    return str(value)


def _count(message: Message) -> int | None:
    """Quorum queues count deliveries; a classic queue only knows the first one."""
    before = (message.properties.headers or {}).get("x-delivery-count")
    if isinstance(before, int):
        return before + 1
    return None if message.redelivered else 1


def _id(given: Any) -> str | None:
    return None if given is None else _text(given)


def _time(seconds: Any) -> datetime | None:
    """Null where there is none, or where it is no time in seconds, as some clients write it."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
