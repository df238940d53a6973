"""Messages of AMQP 1.0 as bytes: the few encodings that ours need, and all that others may use.

The client has a codec too, which makes several calls for each value of each message, turns text that is
not UTF-8 into an error, and takes four times as long.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NULL = b"\x40"
TRUE = b"\x41"

_HEADER, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _VALUE = 0x70, 0x72, 0x73, 0x74, 0x75, 0x77
_DESCRIBED = 0x00


@dataclass(slots=True)
class Message:
    """A message that was read.

    Attributes:
        delivery_count: how often it was delivered before, as far as the broker counts.
        properties: those of the list, in the order of `PROPERTIES`; shorter where the last are left out.
        application: the application properties.
        body: its data, the bytes of a text, or a value of another type as it is encoded.
    """

    delivery_count: int = 0
    annotations: Mapping[Any, Any] = field(default_factory=dict)
    properties: Sequence[Any] = ()
    application: Mapping[Any, Any] = field(default_factory=dict)
    body: bytes = b""

    def property(self, name: str) -> Any:
        """Return one of `PROPERTIES`; None where it is left out."""
        place = PROPERTIES.index(name)
        return self.properties[place] if place < len(self.properties) else None


PROPERTIES = (
    "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type",
    "content-encoding", "absolute-expiry-time", "creation-time", "group-id",
)  # fmt: skip
"""What the list of properties holds, up to the last that we use."""


class MalformedError(Exception):
    """Bytes that are no message."""


def text(value: str) -> bytes:
    """Return a string."""
    return _sized(0xA1, value.encode("utf-8", "surrogatepass"))


def symbol(value: str) -> bytes:
    """Return a symbol; what is not ASCII cannot be one, and is a string."""
    return _sized(0xA3, value.encode()) if value.isascii() else text(value)


def number(value: int) -> bytes:
    """Return a long."""
    return b"\x81" + value.to_bytes(8, "big", signed=True)


def timestamp(milliseconds: int) -> bytes:
    """Return a time since 1970."""
    return b"\x83" + milliseconds.to_bytes(8, "big", signed=True)


def encoded(
    body: bytes,
    *,
    durable: bool = True,
    time_to_live: int | None = None,
    annotations: Mapping[str, bytes] | None = None,
    properties: Mapping[str, bytes] | None = None,
    application: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return a message whose body is a string where it is UTF-8, as the SDKs write it, else data.

    Args:
        time_to_live: in milliseconds.
        annotations, application: encoded values by name.
        properties: encoded values by the names of `PROPERTIES`.
    """
    header = [TRUE if durable else NULL]
    if time_to_live is not None:
        header += [NULL, b"\x70" + time_to_live.to_bytes(4, "big")]
    parts = [_section(_HEADER, _compound(0xC0, header))]
    if annotations:
        parts.append(_section(_ANNOTATIONS, _map(annotations, symbol)))
    if properties:
        listed = [properties.get(name, NULL) for name in PROPERTIES]
        parts.append(_section(_PROPERTIES, _compound(0xC0, listed)))
    if application:
        parts.append(_section(_APPLICATION, _map(application, text)))
    parts.append(_body(body))
    return b"".join(parts)


def decoded(raw: bytes) -> Message:
    """Read a message; `MalformedError` when it is none."""
    try:
        return _read(raw)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError, RecursionError, struct.error):
        raise MalformedError from None


def _body(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError:
        return _section(_DATA, _sized(0xA0, body))
    return _section(_VALUE, _sized(0xA1, body))


def _section(code: int, content: bytes) -> bytes:
    return bytes((_DESCRIBED, 0x53, code)) + content


def _sized(code: int, content: bytes) -> bytes:
    """Of variable width: the code with 16 more has four bytes of length."""
    if len(content) < 256:
        return bytes((code, len(content))) + content
    return bytes((code + 16,)) + len(content).to_bytes(4, "big") + content


def _compound(code: int, items: Sequence[bytes]) -> bytes:
    content = b"".join(items)
    if len(content) < 255 and len(items) < 256:
        return bytes((code, len(content) + 1, len(items))) + content
    return bytes((code + 16,)) + struct.pack(">II", len(content) + 4, len(items)) + content


def _map(values: Mapping[str, bytes], key: Callable[[str], bytes]) -> bytes:
    return _compound(0xC1, [part for name, value in values.items() for part in (key(name), value)])


def _read(raw: bytes) -> Message:
    message = Message()
    data: list[bytes] = []
    place = 0
    while place < len(raw):
        code, start = _value(raw, place + 1)
        content, place = _value(raw, start)
        match code, content:
            case 0x70, [_, _, _, _, int(count), *_]:
                message.delivery_count = count
            case 0x72, {}:
                message.annotations = content
            case 0x73, [*_]:
                message.properties = content
            case 0x74, {}:
                message.application = content
            case 0x75, bytes():
                data.append(content)
            case 0x76 | 0x77, _:
                data.append(_plain(raw[start:place]))
            case str(), _:
                raise MalformedError(code)  # a section by its name, which nobody is known to write
    message.body = b"".join(data)
    return message


def _plain(value: bytes) -> bytes:
    """Return the bytes of an encoded text or binary value; other values as they are."""
    if value[0] == NULL[0]:
        return b""
    if value[0] in (0xA0, 0xA1, 0xA3):
        return value[2:]
    if value[0] in (0xB0, 0xB1, 0xB3):
        return value[5:]
    return value


def _value(raw: bytes, place: int) -> tuple[Any, int]:
    """Return the value at a place, and the place behind it."""
    code = raw[place]
    return _READERS[code](raw, place + 1)


_Reader = Callable[[bytes, int], tuple[Any, int]]


def _constant(value: Any) -> _Reader:
    return lambda _, place: (value, place)


def _fixed(layout: str, convert: Callable[[Any], Any] | None = None) -> _Reader:
    reader = struct.Struct(f">{layout}")

    def read(raw: bytes, place: int) -> tuple[Any, int]:
        (value,) = reader.unpack_from(raw, place)
        return (convert(value) if convert else value), place + reader.size

    return read


def _variable(width: int, convert: Callable[[bytes], Any]) -> _Reader:
    def read(raw: bytes, place: int) -> tuple[Any, int]:
        start = place + width
        end = start + int.from_bytes(raw[place:start], "big")
        if end > len(raw):
            raise IndexError(end)
        return convert(raw[start:end]), end

    return read


def _items(width: int, convert: Callable[[list[Any]], Any]) -> _Reader:
    def read(raw: bytes, place: int) -> tuple[Any, int]:
        count = int.from_bytes(raw[place + width : place + 2 * width], "big")
        place += 2 * width
        values = []
        for _ in range(count):
            value, place = _value(raw, place)
            values.append(value)
        return convert(values), place

    return read


def _array(width: int) -> _Reader:
    def read(raw: bytes, place: int) -> tuple[Any, int]:
        count = int.from_bytes(raw[place + width : place + 2 * width], "big")
        place += 2 * width
        code, place = raw[place], place + 1
        if count > len(raw):
            raise IndexError(count)  # of values without a width there could be any number
        values = []
        for _ in range(count):
            value, place = _READERS[code](raw, place)
            values.append(value)
        return values, place

    return read


def _described(raw: bytes, place: int) -> tuple[Any, int]:
    _, place = _value(raw, place)
    return _value(raw, place)


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(map(_hashable, values[::2]), values[1::2], strict=True))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, bytes, int)) else str(value)


def _decoded_text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def _character(code: int) -> str:
    """`ValueError` for half of a pair, which no text can hold."""
    return chr(code).encode().decode()


def _readers() -> Iterable[tuple[int, _Reader]]:
    yield _DESCRIBED, _described
    for code, value in ((0x40, None), (0x41, True), (0x42, False), (0x43, 0), (0x44, 0), (0x45, ())):
        yield code, _constant(value)
    layouts = {
        0x50: "B", 0x51: "b", 0x52: "B", 0x53: "B", 0x54: "b", 0x55: "b", 0x60: "H", 0x61: "h",
        0x70: "I", 0x71: "i", 0x72: "f", 0x80: "Q", 0x81: "q", 0x82: "d", 0x83: "q",
        0x74: "4s", 0x84: "8s", 0x94: "16s",
    }  # fmt: skip
    for code, layout in layouts.items():
        yield code, _fixed(layout)
    yield 0x56, _fixed("B", bool)
    yield 0x73, _fixed("I", _character)
    yield 0x98, _fixed("16s", lambda content: uuid.UUID(bytes=content))
    for code, width in ((0xA0, 1), (0xB0, 4)):
        yield code, _variable(width, bytes)
        yield code + 1, _variable(width, _decoded_text)
        yield code + 3, _variable(width, _decoded_text)
    for code, width in ((0xC0, 1), (0xD0, 4)):
        yield code, _items(width, list)
        yield code + 1, _items(width, _pairs)
    yield 0xE0, _array(1)
    yield 0xF0, _array(4)


_READERS = dict(_readers())
