"""Envelopes as AMQP messages: the contract's properties and headers, and what a reader makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pika
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.base import deliveries
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


class Message(NamedTuple):
    """A delivery in the terms of `DELIVERIES`, with its tag on the channel on which it came.

    It holds nothing of pika's: what keeps thousands of those objects pays for the collector's visits.
    """

    tag: int
    body: bytes
    headers: tuple[tuple[str, str], ...] | None
    id: str | None
    delivery_count: int | None
    redelivered: bool
    enqueued_at: datetime | None


def message(method: Any, given: pika.BasicProperties, body: bytes) -> Message:
    """A message as pika delivers it."""
    return Message(
        method.delivery_tag,
        body,
        _headers(given),
        None if given.message_id is None else _text(given.message_id),
        _count(method.redelivered, given.headers),
        method.redelivered,
        _time(given.timestamp),
    )


def received(messages: Sequence[Message], epoch: str = "") -> pa.RecordBatch:
    """`DELIVERIES` of messages; their receipts are tags on the channel `epoch`, null without one."""
    tags, bodies, headers, ids, counts, redelivered, times = zip(*messages, strict=True)
    return deliveries(
        len(messages),
        body=bodies,
        headers=headers,
        id=ids,
        count=counts,
        redelivered=redelivered,
        enqueued_at=times,
        receipt=[f"{epoch}:{tag}".encode() for tag in tags] if epoch else None,
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


def _headers(given: pika.BasicProperties) -> tuple[tuple[str, str], ...] | None:
    table = given.headers or {}
    found = [(_text(name), _text(value)) for name, value in table.items() if value is not None]
    for name in _OTHERS:
        value = getattr(given, name)
        if value is not None:
            found.append((f"amqp.{name}", str(value)))
    return tuple(found) or None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, default=_text)
    return str(value)


def _count(redelivered: bool, table: Mapping[str, Any] | None) -> int | None:
    """Quorum queues count deliveries; a classic queue only knows the first one."""
    before = (table or {}).get("x-delivery-count")
    if isinstance(before, int):
        return before + 1
    return None if redelivered else 1


def _time(seconds: Any) -> datetime | None:
    """Null where there is none, or where it is no time in seconds, as some clients write it."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
