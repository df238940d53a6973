"""Messages as SQS has them: entries to send with their attributes, and deliveries out of receives."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings.batches import deliveries, envelopes_of
from babelqueue_spark.bindings.headers import VERSION, Shown, UnsendableError, is_whole_number, shown
from babelqueue_spark.envelope.columns import is_blank

MOST_ATTRIBUTES = 10

_Attribute = tuple[str, str, str | None]
"""Name, data type and value; without a value it is left out."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE_NAME = re.compile(r"(?!\.|.*\.\.|.*\.$|(?i:aws\.|amazon\.))[A-Za-z0-9_.-]{1,256}")
_TOKEN = re.compile(r"[!-~]{1,128}")
"""What group and deduplication ids may hold: letters, digits and punctuation of ASCII."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """A message to send: the entry of the request, its bytes as SQS counts them, and what errors call it."""

    request: dict[str, Any]
    size: int
    label: str


@dataclass(frozen=True, slots=True)
class Target:
    """What the messages of a publish have in common.

    Attributes:
        group: of messages without a key in a FIFO queue.
        content_dedup: the queue makes the deduplication ids.
        max_bytes: most bytes of a message with its attributes.
    """

    queue: str
    fifo: bool
    group: str
    content_dedup: bool
    max_bytes: int


def entries(messages: pa.RecordBatch, target: Target) -> list[RequestEntry]:
    """Return an entry for each message; `UnsendableError` for the first that cannot be sent."""
    columns = (messages.column(name).to_pylist() for name in ("body", "headers", "key", "delay"))
    dropped: set[str] = set()
    made = []
    rows = zip(*columns, shown(envelopes_of(messages)), strict=True)
    for row, (body, headers, key, delay, envelope) in enumerate(rows):
        label = envelope.label(row)
        try:
            text = _text(body, target)
            request = {"Id": str(row), "MessageBody": text, **_delay(delay)}
            request |= _ids(body, key, envelope.name(), target)
        except UnsendableError as error:
            raise UnsendableError(f"{label} cannot be sent: {error}") from None
        projection = _with_given_version(_projection(envelope), headers or ())
        attributes, size = _attributes(projection, headers or (), target.max_bytes - len(body), dropped)
        if attributes:
            request["MessageAttributes"] = attributes
        made.append(RequestEntry(request, len(body) + size, label))
    if dropped:
        logger.warning(
            "queue %s: headers were left out that SQS cannot carry (at most %d attributes, names of letters, "
            "digits, '_', '-' and '.', values neither blank nor with control characters): %s",
            target.queue,
            MOST_ATTRIBUTES,
            ", ".join(sorted(map(repr, dropped))),
        )
    return made


def _with_given_version(
    projection: Sequence[_Attribute], headers: Sequence[tuple[str, str | None]]
) -> Sequence[_Attribute]:
    """Let a version that was given win: a message that was refused for it stays so."""
    given = dict(headers).get(VERSION) or ""
    if is_blank(given):
        return projection
    kind = "Number" if is_whole_number(given) else "String"
    return [(VERSION, kind, given) if each[0] == VERSION else each for each in projection]


def _projection(envelope: Shown) -> Sequence[_Attribute]:
    """Return what the contract shows of an envelope as attributes."""
    version, created_at = (
        None if number is None else str(number) for number in (envelope.schema_version, envelope.created_at)
    )
    return [
        ("bq-job", "String", envelope.job),
        ("bq-trace-id", "String", envelope.trace_id),
        ("bq-message-id", "String", envelope.message_id),
        ("bq-source-lang", "String", envelope.lang),
        (VERSION, "Number", version),
        ("bq-created-at", "Number", created_at),
    ]


def received(messages: Sequence[Mapping[str, Any]], lapses_at: Sequence[float]) -> pa.RecordBatch:
    """Deliveries out of what receives returned, each with the time when its claim lapses."""
    systems = [message.get("Attributes", {}) for message in messages]
    counts = [_integer(system.get("ApproximateReceiveCount")) for system in systems]
    sent = [_integer(system.get("SentTimestamp")) for system in systems]
    return deliveries(
        len(messages),
        body=[body(message) for message in messages],
        headers=[_headers(message.get("MessageAttributes", {})) for message in messages],
        id=[message.get("MessageId") for message in messages],
        count=counts,
        redelivered=[None if count is None else count > 1 for count in counts],
        enqueued_at=sent,
        key=[system.get("MessageGroupId") for system in systems],
        receipt=[
            f"{lapses:.3f} {message['ReceiptHandle']}".encode()
            for lapses, message in zip(lapses_at, messages, strict=True)
        ],
    )


def claim_of(receipt: bytes) -> tuple[float, str]:
    """When the claim of a receipt lapses, and its receipt handle."""
    lapses_at, _, handle = receipt.decode().partition(" ")
    return float(lapses_at), handle


def body(message: Mapping[str, Any]) -> bytes:
    """Return the body of a received message."""
    text: str = message["Body"]
    return text.encode("utf-8", "surrogatepass")


def _text(body: bytes, target: Target) -> str:
    if not body:
        raise UnsendableError("its body is empty, and SQS needs at least one character")
    if len(body) > target.max_bytes:
        raise UnsendableError(
            f"its body has {len(body):,} bytes, and the limit is {target.max_bytes:,}: keep large data "
            "elsewhere and send its address"
        )
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise UnsendableError("its body is not UTF-8, and SQS carries only text: encode it") from None
    found = _FORBIDDEN.search(text)
    if found:
        raise UnsendableError(
            f"its body holds U+{ord(found[0]):04X}, and SQS carries only characters of XML 1.0: escape it"
        )
    return text


def _delay(milliseconds: int | None) -> dict[str, int]:
    seconds = -(-(milliseconds or 0) // 1000)
    return {"DelaySeconds": seconds} if seconds > 0 else {}


def _ids(body: bytes, key: str | None, name: str | None, target: Target) -> dict[str, str]:
    group = key if key is not None or not target.fifo else target.group
    if group is None:
        return {}
    if not _TOKEN.fullmatch(group):
        raise UnsendableError(
            f"its key {group!r} cannot be a message group: use 1 to 128 letters, digits and punctuation "
            "of ASCII"
        )
    if not target.fifo or target.content_dedup:
        return {"MessageGroupId": group}
    if name is None or not _TOKEN.fullmatch(name):
        name = hashlib.sha256(body).hexdigest()
    return {"MessageGroupId": group, "MessageDeduplicationId": name}


def _attributes(
    projection: Sequence[_Attribute], headers: Sequence[tuple[str, str | None]], room: int, dropped: set[str]
) -> tuple[dict[str, dict[str, str]], int]:
    """Return the attributes that fit, those of the contract first, and their bytes; adds to `dropped`."""
    attributes: dict[str, dict[str, str]] = {}
    size = 0
    wanted = [attribute for attribute in projection if attribute[2]]
    for name, kind, value in [*wanted, *((name, "String", value) for name, value in headers)]:
        if name in attributes:
            continue
        own = len(name.encode()) + len(kind) + len((value or "").encode())
        if len(attributes) == MOST_ATTRIBUTES or size + own > room or not _can_be_sent(name, value):
            dropped.add(name)
            continue
        attributes[name] = {"DataType": kind, "StringValue": value or ""}
        size += own
    return attributes, size


def _can_be_sent(name: str, value: str | None) -> bool:
    if value is None or is_blank(value):
        return False
    return bool(_ATTRIBUTE_NAME.fullmatch(name)) and not _FORBIDDEN.search(value)


def _headers(attributes: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]] | None:
    """Return String and Number attributes; binary ones have no place in a header."""
    pairs = [(name, spec["StringValue"]) for name, spec in attributes.items() if "StringValue" in spec]
    return pairs or None


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
