"""Edits of bodies as text: the count of attempts, the dead letter block, its removal.

Every other byte stays as it came: no number is rounded, no key reordered, no space dropped. Two things are
not passed on, for an envelope must not have them: forbidden keys, which are cut, and the inbound alias
`urn`, which becomes `job`. A body that cannot be edited is wrapped whole as `raw`, and unwrapped again.

Canonical bodies take a quick way, all at once; the rest goes through `EditedObject` one by one.
"""

import base64
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from babelqueue_spark.envelope import canonical
from babelqueue_spark.envelope.columns import FORBIDDEN_META_KEYS
from babelqueue_spark.envelope.jsontext import (
    JSON_WHITESPACE,
    Pairs,
    document_pairs,
    has_lone_surrogate,
    is_utf8,
    with_room,
)
from babelqueue_spark.envelope.outline import Outline
from babelqueue_spark.envelope.reasons import Reason
from babelqueue_spark.envelope.strict import is_envelope, is_usable
from babelqueue_spark.envelope.texts import dead_letter_block, digits

_BLOCK = b',"dead_letter":'
_WRAPPERS = ({"raw", "dead_letter"}, {"raw", "raw_encoding", "dead_letter"})

#: From where to where in a text, and the bytes to put there.
Change = tuple[int, int, bytes]

_skim_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def set_attempts(bodies: Any, attempts: Any) -> Any:
    """Return the bodies with another count of attempts, a binary array.

    `bodies` is an array of binary or string type, `attempts` an integer array of the same length. The
    digits of the last `attempts` change; where there is none it is appended. A null count changes nothing.
    What is no JSON object comes back as it is.
    """
    bodies = bodies.cast(pa.binary())
    usual, stems = _stems(bodies)
    quick = _joined(stems, digits(attempts), "}")
    return _completed(quick, pc.and_(usual, attempts.is_valid()), _with_attempts, bodies, attempts)


def dead_letter(bodies: Any, blocks: Any) -> Any:
    """Return the bodies annotated with dead letter blocks, a binary array.

    `blocks` is a struct array of DEAD_LETTER_TYPE, one for each body; a null among them raises ValueError.

    An envelope gets the block appended, or in the place of one it has, and the block's count as its own
    `attempts`. A body that is none (poison, or without identity), or whose block gives `poison` as the
    reason, becomes a poison record: unchanged but for the appended block where that is one strict JSON
    object without a block, else `{"raw": ..., "dead_letter": ...}` with its text, or its base64 and
    `"raw_encoding": "base64"` when it is not UTF-8.
    """
    if blocks.null_count:
        raise ValueError("every body needs a dead letter block")
    bodies = bodies.cast(pa.binary())
    usual, stems = _stems(bodies)
    counts, texts = pc.struct_field(blocks, "attempts"), dead_letter_block(blocks)
    is_poison = pc.fill_null(pc.equal(pc.struct_field(blocks, "reason"), Reason.POISON), False)
    usual = pc.and_(usual, pc.and_not(pc.is_valid(counts), is_poison))
    quick = _joined(stems, digits(counts), _BLOCK, texts, "}")
    return _completed(quick, usual, _annotated, bodies, is_poison, texts, counts)


def strip_dead_letter(bodies: Any) -> Any:
    """Return the bodies as new ones, a binary array: without a dead letter block, with `attempts` 0.

    `bodies` is an array of binary or string type. A count that is not there is not added. A body that was
    wrapped as `raw` is unwrapped; what is no JSON object comes back as it is.
    """
    bodies = bodies.cast(pa.binary())
    parted = pa.array([_without_last_block(body) for body in bodies.to_pylist()], pa.binary())
    usual, stems = _stems(parted)
    return _completed(_joined(stems, "0}"), usual, _redriven, bodies)


# --- canonical bodies, all at once ------------------------------------------------------------------------


def _stems(bodies: Any) -> tuple[Any, Any]:
    """Return which bodies are canonical, and so end in `"attempts":N}`, and each body up to that N."""
    usual = np.zeros(len(bodies), np.bool_)
    usual[canonical.read(bodies).rows] = True
    return pa.array(usual), pc.binary_slice(bodies, 0, -2)


def _joined(*pieces: Any) -> Any:
    binary = [
        piece.cast(pa.binary()) if isinstance(piece, pa.Array) else pa.scalar(piece, pa.binary())
        for piece in pieces
    ]
    return pc.binary_join_element_wise(*binary, pa.scalar(b""))


def _without_last_block(body: bytes | None) -> bytes | None:
    """`body` without the block that is surely its last member, if the rest is an object; else null."""
    if body is None or not (body.endswith(b"}}") and is_utf8(body)):
        return None
    stem, _, block = body.rpartition(_BLOCK)
    try:
        _skim_object(block[:-1])
    except (msgspec.DecodeError, RecursionError):
        return None
    return stem + b"}"


def _completed(quick: Any, usual: Any, edit: Callable[..., bytes], bodies: Any, *arguments: Any) -> Any:
    """`quick` where `usual`; elsewhere each body edited by itself, or as it is where `edit` cannot."""
    odd = pc.invert(usual)
    if not pc.any(odd).as_py():
        return quick
    rows = zip(*(column.filter(odd).to_pylist() for column in (bodies, *arguments)), strict=True)
    return pc.replace_with_mask(quick, odd, pa.array(list(_edited(edit, rows)), pa.binary()))


def _edited(edit: Callable[..., bytes], rows: Iterable[tuple[Any, ...]]) -> Iterable[bytes | None]:
    for body, *arguments in rows:
        try:
            yield None if body is None else with_room(edit, body, *arguments)
        except ValueError:
            yield body


# --- other bodies, one by one -----------------------------------------------------------------------------


class EditedObject:
    """The text of one JSON object, and changes to its members that leave every other byte alone.

    Members are named by their numbers: they count from 0, repeated keys included.
    """

    def __init__(self, text: bytes) -> None:
        """Raise ValueError when `text` is not one strict JSON object of UTF-8 within the limits."""
        if not is_utf8(text):
            raise ValueError("no UTF-8")
        self.text = text
        self.pairs = document_pairs(text)
        self.numbers = {key: number for number, (key, _) in enumerate(self.pairs)}
        """the last member of each key, the one that counts"""
        self._outline = Outline(text)
        self._doomed: set[int] = set()
        self._appended: list[bytes] = []
        self._changes: list[Change] = []

    def last(self, key: str) -> Any:
        """Return the value that counts of this key; UNSET when there is none."""
        return self.pairs[self.numbers[key]][1] if key in self.numbers else UNSET

    def write(self, key: str, value: str) -> None:
        """Give a key this JSON text as its value: in its place, or appended."""
        if key in self.numbers:
            span = self._outline.span(self.numbers[key])
            self._changes.append((span.start, span.end, value.encode()))
        else:
            self._appended.append(f'"{key}":{value}'.encode())

    def cut(self, key: str, *, but_last: bool = False) -> None:
        """Take out the members of this key, or all of them but the last."""
        if key in self.numbers:
            spared = self.numbers[key] if but_last else None
            self._doomed.update(_numbers_of(self.pairs, {key}))
            self._doomed.discard(spared)

    def cut_within(self, outer: str, keys: frozenset[str]) -> None:
        """Take the members of these keys out of the object that is a key's last value."""
        _, start, end = self._outline.span(self.numbers[outer])
        doomed = {*_numbers_of(self.last(outer), keys)}
        inner = Outline(self.text[start:end])
        self._changes += [
            (start + begin, start + stop, b"") for begin, stop in _cuts(inner, len(self.last(outer)), doomed)
        ]

    def rename(self, key: str, new: str) -> None:
        """Give the last member of a key another key."""
        at, start, _ = self._outline.span(self.numbers[key])
        key_end = self.text.rindex(b'"', at, self.text.rindex(b":", at, start)) + 1
        self._changes.append((at, key_end, f'"{new}"'.encode()))

    def result(self) -> bytes:
        left_over = len(self._doomed) < len(self.pairs)
        appended = b",".join([b"", *self._appended] if left_over else self._appended)
        brace = self.text.rindex(b"}")
        cuts = [(start, end, b"") for start, end in _cuts(self._outline, len(self.pairs), self._doomed)]
        pieces = []
        position = 0
        for start, end, replacement in sorted([*self._changes, *cuts, (brace, brace, appended)]):
            pieces += [self.text[position:start], replacement]
            position = end
        return b"".join([*pieces, self.text[position:]])


def _numbers_of(pairs: Pairs, keys: Collection[str]) -> Iterator[int]:
    return (number for number, (key, _) in enumerate(pairs) if key in keys)


def _cuts(outline: Outline, count: int, doomed: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield what to cut so that `doomed` go out of `count` members, each with one of the commas beside it."""
    survivor = next((number for number in range(count) if number not in doomed), count)
    for number in sorted(doomed):
        at, _, end = outline.span(number)
        if number > survivor:
            yield outline.comma(number), end
        elif number + 1 < count:
            yield at, outline.span(number + 1).at
        else:
            yield at, end


def _with_attempts(body: bytes, attempts: int | None) -> bytes:
    edited = EditedObject(body)
    _make_sendable(edited)
    _write_attempts(edited, attempts)
    return edited.result()


def _write_attempts(edited: EditedObject, attempts: int | None) -> None:
    last = edited.last("attempts")
    already = type(last) is int and last == attempts
    if attempts is not None and not already:
        edited.write("attempts", str(attempts))


def _make_sendable(edited: EditedObject) -> None:
    """Cut the forbidden keys, and fold the alias `urn` into `job`."""
    edited.cut("timestamp")
    meta = edited.last("meta")
    if isinstance(meta, tuple) and any(key in FORBIDDEN_META_KEYS for key, _ in meta):
        edited.cut_within("meta", FORBIDDEN_META_KEYS)
    if is_usable(edited.last("job")):
        edited.cut("urn")
    elif is_usable(edited.last("urn")):
        edited.cut("job")
        edited.cut("urn", but_last=True)
        edited.rename("urn", "job")


def _annotated(body: bytes, is_poison: bool, block: str, attempts: int | None) -> bytes:
    if not is_utf8(body):
        return _wrapped(base64.b64encode(body).decode(), '"raw_encoding":"base64",', block)
    if not is_poison and is_envelope(body):
        return _envelope_with_block(body, block, attempts)
    try:
        return _record_with_block(body.strip(JSON_WHITESPACE.encode()), block)
    except ValueError:
        return _wrapped(body.decode(), "", block)


def _wrapped(raw: str, encoding: str, block: str) -> bytes:
    return f'{{"raw":{json.dumps(raw, ensure_ascii=False)},{encoding}"dead_letter":{block}}}'.encode()


def _envelope_with_block(body: bytes, block: str, attempts: int | None) -> bytes:
    edited = EditedObject(body)
    _make_sendable(edited)
    _write_attempts(edited, attempts)
    edited.cut("dead_letter", but_last=True)
    edited.write("dead_letter", block)
    return edited.result()


def _record_with_block(text: bytes, block: str) -> bytes:
    edited = EditedObject(text)
    if "dead_letter" in edited.numbers:
        raise ValueError("there is a block already")
    if has_lone_surrogate(text.decode()):
        raise ValueError("a string has half a surrogate pair")
    edited.write("dead_letter", block)
    return edited.result()


def _redriven(body: bytes) -> bytes:
    edited = EditedObject(body)
    if edited.numbers.keys() in _WRAPPERS:
        return _unwrapped(dict(edited.pairs))
    edited.cut("dead_letter")
    attempts = edited.last("attempts")
    if attempts is None or type(attempts) is int:
        _write_attempts(edited, 0)
    return edited.result()


def _unwrapped(record: dict[str, Any]) -> bytes:
    """Return the body within a poison record. Raises ValueError when it is none after all."""
    raw = record["raw"]
    if not isinstance(raw, str) or record.get("raw_encoding", "base64") != "base64":
        raise ValueError("not a wrapped body")
    return base64.b64decode(raw, validate=True) if "raw_encoding" in record else raw.encode()
