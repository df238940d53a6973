"""Messages as the stand-in keeps them: cut into their sections, of which the bare message is never changed.

The codec is the private one of azure-servicebus, whose version pyproject.toml pins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from azure.servicebus._pyamqp._decode import _DECODE_BY_CONSTRUCTOR
from azure.servicebus._pyamqp._encode import encode_value
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes

ANNOTATIONS, PROPERTIES, APPLICATION, DATA, VALUE_BODY = 0x72, 0x73, 0x74, 0x75, 0x77
ACTIVE, SCHEDULED = 0, 2
"""The values of `x-opt-message-state`."""

_HEADER = struct.Struct(">11sI")
_NULLS_AND_COUNT = b"\x00\x53\x70\xc0\x0a\x05\x40\x40\x40\x40\x70"
_NEVER = -62_135_596_800_000
"""What stands for a time that is not set: the first millisecond of the year 1."""


@dataclass(slots=True)
class Message:
    """A message of an entity.

    Attributes:
        properties, application, body: the sections of the bare message, encoded.
        message_id, session, partition_key: as sent.
        due: epoch seconds when it is enqueued; 0 = at once.
        sequence: its number in the entity.
        enqueued: epoch seconds.
        count: deliveries that failed.
    """

    properties: bytes
    application: bytes
    body: bytes
    message_id: str | None
    session: str | None
    partition_key: str | None
    due: float
    sequence: int = 0
    enqueued: float = 0.0
    count: int = 0

    def encoded(self, *, locked_until: float | None = None, scheduled: bool = False) -> bytes:
        """As delivered (`locked_until` in epoch seconds) or peeked."""
        lock = _NEVER if locked_until is None else int(locked_until * 1000)
        pairs = [
            (b"x-opt-enqueued-time", b"\x83", struct.pack(">q", int(self.enqueued * 1000))),
            (b"x-opt-sequence-number", b"\x81", struct.pack(">q", self.sequence)),
            (b"x-opt-locked-until", b"\x83", struct.pack(">q", lock)),
            (b"x-opt-message-state", b"\x71", struct.pack(">i", SCHEDULED if scheduled else ACTIVE)),
        ]
        if self.partition_key is not None:
            key = self.partition_key.encode()
            pairs.append((b"x-opt-partition-key", b"\xb1", struct.pack(">I", len(key)) + key))
        content = b"".join(
            b"\xa3" + bytes([len(name)]) + name + constructor + value for name, constructor, value in pairs
        )
        annotations = b"\x00\x53\x72\xd1" + struct.pack(">II", len(content) + 4, 2 * len(pairs)) + content
        header = _HEADER.pack(_NULLS_AND_COUNT, self.count)
        return b"".join((header, annotations, self.properties, self.application, self.body))

    def annotate(self, properties: Iterable[tuple[str, str]]) -> None:
        """Add application properties, as a dead letter gets them."""
        added = bytearray()
        for pair in properties:
            for text in pair:
                encode_value(added, {TYPE: AMQPTypes.string, VALUE: text})
        count, content = _map_of(self.application) if self.application else (0, b"")
        content += bytes(added)
        count += 2 * len(list(properties))
        self.application = b"\x00\x53\x74\xd1" + struct.pack(">II", len(content) + 4, count) + content


def parsed(payload: bytes | bytearray | memoryview) -> Message:
    """A message out of what a client sent."""
    raw: dict[int, bytes] = {}
    annotations: dict[bytes, Any] = {}
    properties: list[Any] = []
    for code, value, section in sections(payload):
        raw[code] = raw.get(code, b"") + section
        if code == ANNOTATIONS:
            annotations = value or {}
        elif code == PROPERTIES:
            properties = value
    body = b"".join(section for code, section in raw.items() if DATA <= code <= VALUE_BODY)
    fields = properties + [None] * (13 - len(properties))
    due = annotations.get(b"x-opt-scheduled-enqueue-time")
    return Message(
        properties=raw.get(PROPERTIES, b""),
        application=raw.get(APPLICATION, b""),
        body=body,
        message_id=_text(fields[0]),
        session=_text(fields[10]),
        partition_key=_text(annotations.get(b"x-opt-partition-key")),
        due=due / 1000 if due else 0.0,
    )


def sections(payload: bytes | bytearray | memoryview) -> Iterator[tuple[int, Any, bytes]]:
    """The code, the value and the bytes of each section."""
    view = memoryview(payload)
    while view:
        rest, value = _DECODE_BY_CONSTRUCTOR[view[3]](view[4:])
        yield view[2], value, bytes(view[: len(view) - len(rest)])
        view = rest


def _map_of(section: bytes) -> tuple[int, bytes]:
    """How many keys and values an encoded map section has, and those."""
    if section[3] == 0xC1:
        return section[5], section[6:]
    return struct.unpack(">I", section[8:12])[0], section[12:]


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)
