"""Edits of bodies as text: the count of attempts, the dead letter block, its removal.

Every other byte stays as it came: no number is rounded, no key reordered, no space dropped. Two things are
not passed on, for an envelope must not have them: forbidden keys, which are cut, and the inbound alias
`urn`, which becomes `job`. A body that cannot be edited is wrapped whole as `raw`, and unwrapped again.

Canonical bodies take a quick way, all at once; the rest goes through `EditedObject` one by one.
"""

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.envelope import canonical
from babelqueue_spark.envelope.columns import FORBIDDEN_META_KEYS
from babelqueue_spark.envelope.jsontext import (
    JSON_WHITESPACE,
    STRICT,
    Member,
    document_members,
    has_lone_surrogate,
    is_utf8,
    members,
    with_room,
)
from babelqueue_spark.envelope.reasons import Reason
from babelqueue_spark.envelope.strict import examine, is_usable
from babelqueue_spark.envelope.texts import dead_letter_block, digits

_BLOCK = b',"dead_letter":'
_WRAPPERS = ({"raw", "dead_letter"}, {"raw", "raw_encoding", "dead_letter"})

_skim_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def set_attempts(bodies: Any, attempts: Any) -> Any:
    """The bodies with another count of attempts, a binary array.

    `bodies` is an array of binary or string type, `attempts` an integer array of the same length. The
    digits of the last `attempts` change; where there is none it is appended. A null count changes nothing.
    What is no JSON object comes back as it is.
    """
    bodies = bodies.cast(pa.binary())
    usual, stems = _stems(bodies)
    quick = _joined(stems, digits(attempts), "}")
    return _completed(quick, pc.and_(usual, attempts.is_valid()), _with_attempts, bodies, attempts)


def dead_letter(bodies: Any, blocks: Any) -> Any:
    """The bodies annotated with dead letter blocks, a binary array.

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
    """The bodies ready to be sent anew, a binary array: without dead letter block, and with `attempts` 0.

    `bodies` is an array of binary or string type. A count that is not there is not added. A body that was
    wrapped as `raw` is unwrapped; what is no JSON object comes back as it is.
    """
    bodies = bodies.cast(pa.binary())
    parted = pa.array([_without_last_block(body) for body in bodies.to_pylist()], pa.binary())
    usual, stems = _stems(parted)
    return _completed(_joined(stems, "0}"), usual, _redriven, bodies)


# --- canonical bodies, all at once ------------------------------------------------------------------------


def _stems(bodies: Any) -> tuple[Any, Any]:
    """Which bodies are canonical, and so end in `"attempts":N}`, and each body up to that N."""
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
    """The text of one JSON object, and changes to its members that leave every other character alone."""

    def __init__(self, text: str) -> None:
        """Raise ValueError when `text` is not one strict JSON object within the limits."""
        self.text = text
        self.members = document_members(text)
        self._doomed: list[Member] = []
        self._appended: list[str] = []
        self._changes: list[tuple[int, int, str]] = []

    def last(self, key: str) -> Member | None:
        """The member of this key that counts."""
        return next((member for member in reversed(self.members) if member.key == key), None)

    def write(self, key: str, value: str) -> None:
        """Give a key this JSON text as its value: in its place, or appended."""
        member = self.last(key)
        if member is None:
            self._appended.append(f'"{key}":{value}')
        else:
            self._changes.append((member.start, member.end, value))

    def cut(self, doomed: Iterable[Member]) -> None:
        """Take these members out."""
        self._doomed.extend(doomed)

    def cut_within(self, outer: Member, keys: frozenset[str]) -> None:
        """Take the members of these keys out of the object that is a member's value."""
        inner, _ = members(self.text, start=outer.start)
        self._changes += _cuts(self.text, inner, [member for member in inner if member.key in keys])

    def rename(self, member: Member, key: str) -> None:
        """Give a member another key."""
        _, key_end = STRICT.raw_decode(self.text, member.at)
        self._changes.append((member.at, key_end, f'"{key}"'))

    def result(self) -> bytes:
        """The text with all changes."""
        left_over = len(self._doomed) < len(self.members)
        appended = ",".join(["", *self._appended] if left_over else self._appended)
        brace = self.text.rindex("}")
        changes = [*self._changes, *_cuts(self.text, self.members, self._doomed), (brace, brace, appended)]
        pieces = []
        position = 0
        for start, end, replacement in sorted(changes):
            pieces += [self.text[position:start], replacement]
            position = end
        return "".join([*pieces, self.text[position:]]).encode()


def _cuts(text: str, found: list[Member], doomed: list[Member]) -> Iterable[tuple[int, int, str]]:
    """The changes that take `doomed` out of `found`, each member with one of the commas beside it."""
    places = {member.at for member in doomed}
    survivor = False
    for number, member in enumerate(found):
        if member.at not in places:
            survivor = True
        elif survivor:
            yield text.index(",", found[number - 1].end), member.end, ""
        elif number + 1 < len(found):
            yield member.at, found[number + 1].at, ""
        else:
            yield member.at, member.end, ""


def _with_attempts(body: bytes, attempts: int | None) -> bytes:
    edited = EditedObject(body.decode())
    _make_sendable(edited)
    _write_attempts(edited, attempts)
    return edited.result()


def _write_attempts(edited: EditedObject, attempts: int | None) -> None:
    last = edited.last("attempts")
    already = last is not None and type(last.value) is int and last.value == attempts
    if attempts is not None and not already:
        edited.write("attempts", str(attempts))


def _make_sendable(edited: EditedObject) -> None:
    """Cut the forbidden keys, and fold the alias `urn` into `job`."""
    edited.cut(member for member in edited.members if member.key == "timestamp")
    meta = edited.last("meta")
    if meta is not None and isinstance(meta.value, dict) and not FORBIDDEN_META_KEYS.isdisjoint(meta.value):
        edited.cut_within(meta, FORBIDDEN_META_KEYS)
    job, urn = edited.last("job"), edited.last("urn")
    if job is not None and is_usable(job.value):
        edited.cut(member for member in edited.members if member.key == "urn")
    elif urn is not None and is_usable(urn.value):
        edited.cut(member for member in edited.members if member.key in ("job", "urn") and member is not urn)
        edited.rename(urn, "job")


def _annotated(body: bytes, is_poison: bool, block: str, attempts: int | None) -> bytes:
    if not is_utf8(body):
        return _wrapped(base64.b64encode(body).decode(), '"raw_encoding":"base64",', block)
    text = body.decode()
    if not is_poison and _is_envelope(body):
        return _envelope_with_block(text, block, attempts)
    try:
        return _record_with_block(text.strip(JSON_WHITESPACE), block)
    except ValueError:
        return _wrapped(text, "", block)


def _is_envelope(body: bytes) -> bool:
    row = examine(body)
    return not row.poison and is_usable(row.job)


def _wrapped(raw: str, encoding: str, block: str) -> bytes:
    return f'{{"raw":{json.dumps(raw, ensure_ascii=False)},{encoding}"dead_letter":{block}}}'.encode()


def _envelope_with_block(text: str, block: str, attempts: int | None) -> bytes:
    edited = EditedObject(text)
    _make_sendable(edited)
    _write_attempts(edited, attempts)
    last = edited.last("dead_letter")
    edited.cut(member for member in edited.members if member.key == "dead_letter" and member is not last)
    edited.write("dead_letter", block)
    return edited.result()


def _record_with_block(text: str, block: str) -> bytes:
    edited = EditedObject(text)
    if edited.last("dead_letter") is not None:
        raise ValueError("there is a block already")
    if has_lone_surrogate(text):
        raise ValueError("a string has half a surrogate pair")
    edited.write("dead_letter", block)
    return edited.result()


def _redriven(body: bytes) -> bytes:
    edited = EditedObject(body.decode())
    if {member.key for member in edited.members} in _WRAPPERS:
        return _unwrapped({member.key: member.value for member in edited.members})
    edited.cut(member for member in edited.members if member.key == "dead_letter")
    attempts = edited.last("attempts")
    if attempts is not None and (attempts.value is None or type(attempts.value) is int):
        _write_attempts(edited, 0)
    return edited.result()


def _unwrapped(record: dict[str, Any]) -> bytes:
    """The body within a poison record. Raises ValueError when it is none after all."""
    raw = record["raw"]
    if not isinstance(raw, str) or record.get("raw_encoding", "base64") != "base64":
        raise ValueError("not a wrapped body")
    return base64.b64decode(raw, validate=True) if "raw_encoding" in record else raw.encode()
