"""Header tables in frames: those that pika cannot read, and those that a frame cannot hold."""

from __future__ import annotations

import struct
from typing import Any

import pika
from pika import data, spec
from pika.adapters.select_connection import SelectConnection

_SIZE = struct.Struct(">I")
_FRAME = struct.Struct(">BHI")
_FLAGS = 12
"""Where the flags of a header frame stand, behind class, weight and body size."""
_SHORT_STRINGS = 4_096
"""Bytes of all properties but the headers, at most."""
_NUMBER = 9
"""Bytes of a header beside its texts, at most: with the lengths of texts it is less."""


class LenientConnection(SelectConnection):
    """A connection that survives headers which pika cannot decode."""

    _frame_buffer: bytes

    def _read_frame(self) -> Any:
        try:
            return super()._read_frame()  # type: ignore[misc]
        except Exception:
            if self._frame_buffer[0] != spec.FRAME_HEADER:
                raise
            self._frame_buffer = _readable(self._frame_buffer)
            return super()._read_frame()  # type: ignore[misc]


def fit(properties: pika.BasicProperties, frame_max: int) -> set[str]:
    """Leave out the largest headers that a frame has no room for; return their names."""
    left_out: set[str] = set()
    headers = properties.headers or {}
    most = sum(4 * (len(name) + _length(value)) + _NUMBER for name, value in headers.items())
    if most + _SHORT_STRINGS <= frame_max:
        return left_out
    excess = sum(map(len, properties.encode())) - (frame_max - _FRAME.size - _FLAGS - 1)
    for name in sorted(headers, key=lambda name: _size(name, headers[name]), reverse=True):
        if excess <= 0:
            break
        excess -= _size(name, headers[name])
        left_out.add(name)
    properties.headers = {name: value for name, value in headers.items() if name not in left_out}
    return left_out


def _size(name: str, value: Any) -> int:
    """Return the bytes of a header in a frame: of a text exactly, of any other value the least."""
    return 2 + len(name.encode()) + (4 + len(value.encode()) if isinstance(value, str) else 0)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def _readable(buffer: bytes) -> bytes:
    """Return the buffer with the undecodable headers of its first frame as text."""
    kind, channel, size = _FRAME.unpack_from(buffer)
    payload, rest = buffer[_FRAME.size : _FRAME.size + size], buffer[_FRAME.size + size :]
    [flags] = struct.unpack_from(">H", payload, _FLAGS)
    start = _FLAGS + 2
    for flag in (spec.BasicProperties.FLAG_CONTENT_TYPE, spec.BasicProperties.FLAG_CONTENT_ENCODING):
        if flags & flag:
            start += 1 + payload[start]
    first = start + _SIZE.size
    end = first + _SIZE.unpack_from(payload, start)[0]
    table = _readable_table(payload[first:end])
    payload = payload[:start] + _SIZE.pack(len(table)) + table + payload[end:]
    return _FRAME.pack(kind, channel, len(payload)) + payload + rest


def _readable_table(table: bytes) -> bytes:
    pieces, place = [], 0
    while place < len(table):
        value = place + 1 + table[place]
        pieces.append(table[place:value])
        try:
            place = data.decode_value(table, value)[1]
            pieces.append(table[value:place])
        except Exception:  # noqa: BLE001 (whatever it is that pika raises)
            text, place = _as_text(table, value)
            pieces.append(b"S" + _SIZE.pack(len(text)) + text)
    return b"".join(pieces)


def _as_text(table: bytes, place: int) -> tuple[bytes, int]:
    """Return the seconds of a time, or the encoded content of another value, and the place behind it."""
    kind, start = table[place : place + 1], place + 1
    if kind == b"T":
        return str(int.from_bytes(table[start : start + 8], "big")).encode(), start + 8
    end = len(table)
    if kind in (b"A", b"F"):
        start += _SIZE.size
        end = start + _SIZE.unpack_from(table, place + 1)[0]
    return table[start:end], end
