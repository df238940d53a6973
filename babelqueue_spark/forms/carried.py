"""What names a message beside its body, and what a retry or a dead letter adds to it.

It travels in headers. A broker without headers gets a wrapper around the body, while there is something to
carry: `{"babelqueue_raw": "<body>", "attempts": 1}`.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Struct, UnsetType

from babelqueue_spark.bindings.headers import ATTEMPTS, LETTER, header, whole_numbers, without_headers
from babelqueue_spark.envelope.jsontext import is_utf8
from babelqueue_spark.envelope.rows import DeadLetter, dead_letter_column
from babelqueue_spark.envelope.texts import dead_letter_block
from babelqueue_spark.forms.contract import Carrier, Form, Parts, headers_of

_OURS = frozenset([ATTEMPTS, LETTER])
_KEY = b'"babelqueue_raw"'


class _Wrapper(Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    babelqueue_raw: str
    babelqueue_encoding: str | None = None
    attempts: int | None = None
    dead_letter: msgspec.Raw | UnsetType = UNSET

    def body(self) -> bytes:
        raw = self.babelqueue_raw
        return base64.b64decode(raw, validate=True) if self.babelqueue_encoding else raw.encode()


_parse = msgspec.json.Decoder(_Wrapper).decode
_parse_block = msgspec.json.Decoder(DeadLetter).decode
_encode = msgspec.json.Encoder().encode


class CarriedForm(Form):
    """A form whose retries and dead letters keep the body as it is."""

    def encode(self, messages: pa.RecordBatch, headers: pa.MapArray, carrier: Carrier) -> Parts:
        parts = self._encoded(messages, without_headers(headers, _OURS), carrier)
        counts = messages.column("attempts")
        if not pc.any(pc.greater(counts, 0)).as_py():
            return parts
        counted = pc.if_else(pc.greater(counts, 0), counts, None)
        return self.retried(parts.batch(), counted, carrier)

    @abstractmethod
    def _encoded(self, messages: pa.RecordBatch, headers: pa.MapArray, carrier: Carrier) -> Parts:
        """Do what `encode` promises of messages without attempts."""

    def retried(self, messages: pa.RecordBatch, attempts: pa.Int32Array, carrier: Carrier) -> Parts:
        found = Opened(messages)
        counts = pc.coalesce(attempts, found.attempts)
        if not carrier.headers:
            return Parts(_wrapped(found.bodies, counts, pa.nulls(len(messages), pa.string())), found.headers)
        return Parts(found.bodies, with_headers(found.headers, {ATTEMPTS: counts.cast(pa.string())}))

    def dead_lettered(self, messages: pa.RecordBatch, blocks: pa.StructArray, carrier: Carrier) -> Parts:
        found = Opened(messages)
        counts = pc.struct_field(blocks, "attempts")
        if not carrier.headers:
            return Parts(_wrapped(found.bodies, counts, dead_letter_block(blocks)), found.headers)
        ours = {ATTEMPTS: counts.cast(pa.string()), LETTER: dead_letter_block(blocks)}
        return Parts(found.bodies, with_headers(without_headers(found.headers, _OURS), ours))

    def redriven(self, messages: pa.RecordBatch) -> Parts:
        found = Opened(messages)
        return Parts(found.bodies, without_headers(found.headers, _OURS))


class Opened:
    """Messages without their wrappers.

    Attributes:
        bodies: the bodies themselves.
        headers: a map of texts, null where there are none.
        attempts: as a header or a wrapper says, else null.
    """

    def __init__(self, messages: pa.RecordBatch) -> None:
        bodies = messages.column("body").cast(pa.binary())
        self.headers = headers_of(messages)
        self._wrappers = {
            row: wrapper
            for row in pc.indices_nonzero(pc.fill_null(pc.match_substring(bodies, _KEY), False)).to_pylist()
            if (wrapper := _wrapper(bodies[row].as_py())) is not None
        }
        self.bodies = self._with_unwrapped(bodies)
        self.attempts = self._with_counts(whole_numbers(header(self.headers, ATTEMPTS)))

    def dead_letters(self) -> pa.StructArray:
        """Return the blocks, of `DEAD_LETTER_TYPE`."""
        texts: list[Any] = header(self.headers, LETTER).to_pylist()
        for row, wrapper in self._wrappers.items():
            texts[row] = None if wrapper.dead_letter is UNSET else wrapper.dead_letter
        return dead_letter_column([None if text is None else _block(text) for text in texts])

    def _with_unwrapped(self, bodies: pa.BinaryArray) -> pa.BinaryArray:
        if not self._wrappers:
            return bodies
        mask = np.zeros(len(bodies), np.bool_)
        mask[[*self._wrappers]] = True
        inner = pa.array([wrapper.body() for wrapper in self._wrappers.values()], pa.binary())
        return pc.replace_with_mask(bodies, pa.array(mask), inner)

    def _with_counts(self, counts: pa.Int32Array) -> pa.Int32Array:
        if not self._wrappers:
            return counts
        values = counts.to_pylist()
        for row, wrapper in self._wrappers.items():
            values[row] = wrapper.attempts
        return pa.array(values, pa.int32())


def unwrapped(body: bytes) -> bytes:
    """Return a body without its wrapper."""
    wrapper = _wrapper(body) if _KEY in body else None
    return body if wrapper is None else wrapper.body()


def with_headers(headers: pa.MapArray, values: dict[str, pa.StringArray]) -> pa.MapArray:
    """Set headers; a null value leaves the one that is there. Ours come first."""
    columns = zip(*(column.to_pylist() for column in values.values()), strict=True)
    made = []
    for given, row in zip(headers.to_pylist(), columns, strict=True):
        new: dict[str, Any] = {
            name: value for name, value in zip(values, row, strict=True) if value is not None
        }
        for name, value in given or ():
            new.setdefault(name, value)
        made.append([*new.items()] or None)
    return pa.array(made, headers.type)


def _wrapper(body: bytes) -> _Wrapper | None:
    try:
        found = _parse(body)
        found.body()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found.attempts is None or 0 <= found.attempts < 2**31 else None


def _block(text: str | msgspec.Raw) -> DeadLetter | None:
    try:
        return _parse_block(text)
    except msgspec.MsgspecError:
        return None


def _wrapped(bodies: pa.BinaryArray, attempts: pa.Int32Array, blocks: pa.StringArray) -> pa.BinaryArray:
    """Wrap bodies that have attempts or a block; the others stay."""
    columns: Sequence[list[Any]] = [column.to_pylist() for column in (bodies, attempts, blocks)]
    return pa.array([_around(*row) for row in zip(*columns, strict=True)], pa.binary())


def _around(body: bytes, attempts: int | None, block: str | None) -> bytes:
    if not attempts and block is None:
        return body
    text, encoding = (body.decode(), None) if is_utf8(body) else (base64.b64encode(body).decode(), "base64")
    raw = UNSET if block is None else msgspec.Raw(block.encode())
    return _encode(_Wrapper(text, encoding, attempts, raw))
