"""Messages as Service Bus has them: those to send, and deliveries out of received ones."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from babelqueue_spark.bindings.batches import deliveries, envelopes_of, milliseconds
from babelqueue_spark.bindings.headers import (
    CONTENT_TYPE,
    ID,
    JOB,
    TRACE_ID,
    VERSION,
    Shown,
    UnsendableError,
    is_whole_number,
    shown,
    take_properties,
    with_properties,
)
from babelqueue_spark.envelope.columns import TIMESTAMP, is_blank

LONGEST_ID = 128
"""Characters of a message id, and of a session id."""

_LARGEST_INT = 1 << 31
_TOKEN = 16


@dataclass(frozen=True, slots=True)
class LabelledMessage:
    """A message to send, and what errors call it."""

    message: ServiceBusMessage
    label: str


def entries(messages: pa.RecordBatch, session: str | None, *, native: bool = False) -> list[LabelledMessage]:
    """Return an entry for each message; `UnsendableError` for the first that cannot be sent.

    `session` is that of messages without a key, where all need one. With `native`, a header gives the
    content type.
    """
    columns = (messages.column(name).to_pylist() for name in ("body", "headers", "key", "delay"))
    now = datetime.now(UTC)
    made = []
    rows = zip(*columns, shown(envelopes_of(messages)), strict=True)
    for row, (body, headers, key, delay, envelope) in enumerate(rows):
        label = envelope.label(row)
        if key is not None and not 0 < len(key) <= LONGEST_ID:
            raise UnsendableError(
                f"{label} cannot be sent: its key cannot be a session: use 1 to {LONGEST_ID} characters"
            )
        named = dict(headers or ())
        properties = (envelope.job, envelope.trace_id, envelope.message_id)
        kind = take_properties(named, *properties) if native else None
        if native and envelope.message_id:
            named[ID] = envelope.message_id  # that of a retry is another one
        message = ServiceBusMessage(
            body,
            subject=envelope.job,
            correlation_id=envelope.trace_id,
            message_id=_message_id(envelope),
            content_type=kind or "application/json",
            session_id=key if key is not None else session,
            application_properties=_properties(envelope, [*named.items()]),
        )
        if delay and delay > 0:
            message.scheduled_enqueue_time_utc = _later(now, delay, label)
        made.append(LabelledMessage(message, label))
    return made


def received(
    messages: Sequence[ServiceBusReceivedMessage], *, by_session: bool, native: bool = False
) -> pa.RecordBatch:
    """Deliveries out of received or peeked messages; only those that are locked have a receipt.

    With `native`, headers show the properties that name a message.

    A session that ends gives its messages back uncounted: with sessions, 1 need not be the first delivery.
    """
    counts = [(message.delivery_count or 0) + 1 for message in messages]
    enqueued = pa.array([message.enqueued_time_utc for message in messages], TIMESTAMP)
    return deliveries(
        len(messages),
        body=[body(message) for message in messages],
        headers=[
            _headers(message.application_properties or {}, _naming(message) if native else {})
            for message in messages
        ],
        id=[str(message.sequence_number) for message in messages],
        count=counts,
        redelivered=[True if count > 1 else None if by_session else False for count in counts],
        enqueued_at=milliseconds(enqueued).to_pylist(),
        key=[message.session_id for message in messages],
        receipt=[_receipt(message) for message in messages],
    )


def claim_of(receipt: bytes) -> tuple[uuid.UUID, str]:
    """Return the lock token of a receipt, and its session, which is empty without one."""
    return uuid.UUID(bytes=receipt[:_TOKEN]), receipt[_TOKEN:].decode()


def body(message: ServiceBusReceivedMessage) -> bytes:
    """Return the body of a received message: its data as it is, or the text of a value."""
    if message.body_type == AmqpMessageBodyType.DATA:
        return b"".join(message.body)
    content = message.body
    return content if isinstance(content, bytes) else str(content).encode("utf-8", "surrogatepass")


def _message_id(envelope: Shown) -> str | None:
    name = envelope.name() or ""
    return name if 0 < len(name) <= LONGEST_ID else None


def _properties(envelope: Shown, headers: Sequence[tuple[str, str | None]]) -> dict[str | bytes, Any] | None:
    """Return the contract's three fields as native types, and the headers."""
    properties: dict[str | bytes, Any] = {name: value for name, value in headers if value is not None}
    given = str(properties.get(VERSION) or "")
    if not is_blank(given):
        properties[VERSION] = _integer(int(given)) if is_whole_number(given) else given
    elif envelope.schema_version is not None:
        properties[VERSION] = envelope.schema_version
    if envelope.lang:
        properties["bq-source-lang"] = envelope.lang
    if envelope.created_at is not None:
        properties["bq-created-at"] = _integer(envelope.created_at)
    return properties or None


def _integer(value: int) -> Any:
    """Return a value as the client takes it: it takes an int for 32 bits, unless its type is named."""
    return value if -_LARGEST_INT <= value < _LARGEST_INT else {"TYPE": "LONG", "VALUE": value}


def _later(now: datetime, milliseconds: int, label: str) -> datetime:
    try:
        return now + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise UnsendableError(f"{label} cannot be sent: its delay ends after the year 9999") from None


def _naming(message: ServiceBusReceivedMessage) -> dict[str, str | None]:
    return {
        JOB: message.subject,
        TRACE_ID: message.correlation_id,
        ID: message.message_id,
        CONTENT_TYPE: message.content_type,
    }


def _headers(
    properties: Mapping[str | bytes, Any], naming: Mapping[str, str | None]
) -> list[tuple[str, str | None]] | None:
    """Application properties as text; bytes that are no text have no place in a header."""
    pairs: list[tuple[str, str | None]] = []
    for name, value in properties.items():
        try:
            pairs.append((_text(name), None if value is None else _text(value)))
        except UnicodeDecodeError:
            continue
    if naming:
        seen = dict(pairs)
        pairs = with_properties(pairs, {**naming, ID: seen.get(ID) or naming[ID]})
    return pairs or None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _receipt(message: ServiceBusReceivedMessage) -> bytes | None:
    token = message.lock_token
    return token.bytes + (message.session_id or "").encode() if isinstance(token, uuid.UUID) else None
