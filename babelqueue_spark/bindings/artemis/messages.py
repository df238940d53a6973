"""Envelopes as Artemis messages: the contract's properties, and what a reader makes of messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings.artemis import amqp
from babelqueue_spark.bindings.artemis.options import ArtemisOptions
from babelqueue_spark.bindings.batches import deliveries, envelopes_of
from babelqueue_spark.bindings.headers import (
    CONTENT_TYPE,
    ID,
    JOB,
    TRACE_ID,
    Shown,
    beside,
    shown,
    take_properties,
    with_properties,
)

_VERSION = "bq_schema_version"
_DUPLICATE_ID = "_AMQ_DUPL_ID"
_NAMING = {"subject": JOB, "correlation-id": TRACE_ID, "message-id": ID, "content-type": CONTENT_TYPE}
"""Property → header, of messages whose body does not name them."""
_LATEST = (1 << 63) - 1

Found = tuple[int, bytes]
"""The number of a delivery, and its message as it was sent."""


def encoded(messages: pa.RecordBatch, options: ArtemisOptions, *, native: bool = False) -> Iterator[bytes]:
    """`OUTGOING` messages as they are sent. With `native`, a header gives the content type."""
    columns = (messages.column(name).to_pylist() for name in ("body", "headers", "key", "delay"))
    rows = zip(*columns, shown(envelopes_of(messages)), strict=True)
    for body, headers, key, delay, envelope in rows:
        given = {name: value for name, value in headers or () if value is not None}
        properties = _properties(envelope, key)
        if native and (kind := take_properties(given, envelope.job, envelope.trace_id, envelope.message_id)):
            properties["content-type"] = amqp.symbol(kind)
        if options.duplicate_detection and envelope.message_id:
            given.setdefault(_DUPLICATE_ID, envelope.name())
        yield amqp.encoded(
            body,
            time_to_live=options.time_to_live_ms,
            annotations=_annotations(envelope.job, delay),
            properties=properties,
            application={
                name: amqp.text(value) for name, value in beside(given, _contract(envelope), _VERSION).items()
            },
        )


def received(found: Sequence[Found], holder: str | None, *, native: bool = False) -> pa.RecordBatch:
    """`DELIVERIES` of messages that came by a link; receipts are null without one.

    With `native`, headers show the properties that name a message.
    """
    messages = [_message(raw) for _, raw in found]
    again = [message.delivery_count or None for message in messages]
    return deliveries(
        len(messages),
        body=[message.body for message in messages],
        headers=[_headers(message, _NAMING if native else {}) for message in messages],
        id=[_optional_text(message.property("message-id")) for message in messages],
        count=[None if count is None else count + 1 for count in again],
        redelivered=[None if count is None else True for count in again],
        enqueued_at=list(map(_enqueued_at, messages)),
        key=[_optional_text(message.property("group-id")) for message in messages],
        receipt=[f"{holder}:{number}".encode() for number, _ in found] if holder else None,
    )


def numbers(claimed: pa.RecordBatch, holder: str) -> list[int | None]:
    """Return the numbers in receipts, None where they are of another link."""
    receipts = (receipt.decode().partition(":") for receipt in claimed.column("receipt").to_pylist())
    return [int(number) if link == holder else None for link, _, number in receipts]


def _contract(envelope: Shown) -> dict[str, str]:
    """Return the properties of the contract; none beside what is no envelope."""
    if envelope.job is None and envelope.schema_version is None and envelope.attempts is None:
        return {}
    found = {
        _VERSION: None if envelope.schema_version is None else str(envelope.schema_version),
        "bq_source_lang": envelope.lang,
        "bq_attempts": str(envelope.attempts or 0),
        "bq_app_id": "babelqueue",
    }
    return {name: value for name, value in found.items() if value}


def _annotations(job: str | None, delay: int | None) -> dict[str, bytes]:
    annotations = {"x-opt-jms-type": amqp.symbol(job)} if job else {}
    if delay and delay > 0:
        annotations["x-opt-delivery-time"] = amqp.number(min(int(time.time() * 1000) + delay, _LATEST))
    return annotations


def _properties(envelope: Shown, key: str | None) -> dict[str, bytes]:
    """JMS reads `subject` as the type, the SDKs the annotation."""
    texts = {
        "message-id": envelope.message_id,
        "subject": envelope.job,
        "correlation-id": envelope.trace_id,
        "group-id": key,
    }
    properties = {name: amqp.text(value) for name, value in texts.items() if value}
    if envelope.created_at is not None:
        properties["creation-time"] = amqp.timestamp(envelope.created_at)
    return properties


def _message(raw: bytes) -> amqp.Message:
    try:
        return amqp.decoded(raw)
    except amqp.MalformedError:
        return amqp.Message(body=raw)


def _headers(message: amqp.Message, naming: Mapping[str, str]) -> list[tuple[str, str]] | None:
    """Application properties as text, but for the id of a publish: that of another one would be dropped."""
    named = {header: _optional_text(message.property(name)) for name, header in naming.items()}
    pairs = ((_text(name), value) for name, value in message.application.items() if value is not None)
    given = [(name, _text(value)) for name, value in pairs if name != _DUPLICATE_ID]
    return with_properties(given, named) or None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _enqueued_at(message: amqp.Message) -> int | None:
    """When it came to the broker, where that writes it down, else when it was made."""
    moment = message.annotations.get("x-opt-ingress-time", message.property("creation-time"))
    return moment if isinstance(moment, int) and not isinstance(moment, bool) else None
