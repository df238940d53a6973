"""The general way to read one body: slower than the columnar one, exact on everything.

A body is poison when it is not exactly one JSON object of valid UTF-8, or when a known member has a wrong
type in any of its occurrences. Its fields are then still shown where they have the type of the contract.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from babelqueue_spark.envelope.columns import CORE_META_KEYS, FORBIDDEN_META_KEYS, is_blank
from babelqueue_spark.envelope.jsontext import (
    FINITE,
    LENIENT,
    Member,
    NumberError,
    document_members,
    is_utf8,
    members,
    with_room,
    without_surrogates,
)
from babelqueue_spark.envelope.rows import DeadLetter, Meta, Row

Kind = type | Mapping[str, Any]

META_KINDS: Mapping[str, type] = {
    "id": str,
    "queue": str,
    "lang": str,
    "schema_version": int,
    "created_at": int,
}
DEAD_LETTER_KINDS: Mapping[str, type] = {
    "reason": str,
    "error": str,
    "exception": str,
    "failed_at": int,
    "original_queue": str,
    "attempts": int,
    "lang": str,
}
ENVELOPE_KINDS: Mapping[str, Kind] = {
    "trace_id": str,
    "data": dict,
    "meta": META_KINDS,
    "attempts": int,
    "dead_letter": DEAD_LETTER_KINDS,
}

_INT64 = range(-(2**63), 2**63)


def examine(body: bytes | None, *, allow_list_data: bool = False) -> Row:
    """Read one body of any content; never raises. A body that is no JSON object gives only `poison`."""
    return Row(poison=True) if body is None else with_room(_examine, body, allow_list_data)


def _examine(body: bytes, allow_list_data: bool) -> Row:
    text = body.decode("utf-8", "surrogateescape")
    try:
        found, poison = _members(text)
    except ValueError:
        return Row(poison=True)
    poison = poison or not is_utf8(body) or not _well_typed(text, found, ENVELOPE_KINDS, allow_list_data)
    return _row(text, found, poison, allow_list_data)


def _members(text: str) -> tuple[list[Member], bool]:
    """The members of a body, and whether one of its numbers makes it poison. ValueError: it is no object."""
    try:
        return document_members(text, data_decoder=FINITE), False
    except NumberError:
        return document_members(text, decoder=LENIENT), True


def _well_typed(
    text: str, found: list[Member], kinds: Mapping[str, Kind], allow_list_data: bool = False
) -> bool:
    return all(
        _fits(text, member, kinds[member.key])
        or (allow_list_data and member.key == "data" and member.value == [])
        for member in found
        if member.key in kinds and member.value is not None
    )


def _fits(text: str, member: Member, kind: Kind) -> bool:
    if kind is int:
        return type(member.value) is int and member.value in _INT64
    if isinstance(kind, type):
        return isinstance(member.value, kind)
    return isinstance(member.value, dict) and _well_typed(text, members(text, start=member.start)[0], kind)


def _row(text: str, found: list[Member], poison: bool, allow_list_data: bool) -> Row:
    last = {member.key: member for member in found}
    meta = _nested(text, last.get("meta"))
    dead_letter = _nested(text, last.get("dead_letter"))
    return Row(
        job=identity(_value(last, "job"), _value(last, "urn")),
        trace_id=_of_kind(last, "trace_id", str),
        data=_data(text, last.get("data"), allow_list_data),
        meta=None if meta is None else Meta(**_of_kinds(meta, META_KINDS)),
        extra=_extra(text, meta or {}),
        attempts=_of_kind(last, "attempts", int),
        dead_letter=None if dead_letter is None else DeadLetter(**_of_kinds(dead_letter, DEAD_LETTER_KINDS)),
        poison=poison,
        ignored=ignored_keys(_value(last, "job"), _value(last, "urn"), "timestamp" in last, meta or ()),
    )


def is_usable(identity: Any) -> bool:
    """Whether a value names a message: a string that is not blank."""
    return isinstance(identity, str) and not is_blank(identity)


def identity(job: Any, urn: Any) -> str | None:
    """The URN of a body: a usable `job`, else a usable `urn`, else a blank `job`. UNSET = no such key."""
    for candidate in (job, urn):
        if is_usable(candidate):
            return without_surrogates(candidate)
    return job if isinstance(job, str) else None


def ignored_keys(job: Any, urn: Any, has_timestamp: bool, meta_keys: Iterable[str]) -> tuple[str, ...]:
    """JSON pointers of a body's forbidden keys, of a `job` that is no string, of a `urn` beside a `job`."""
    pointers = [f"/meta/{key}" for key in meta_keys if key in FORBIDDEN_META_KEYS]
    if has_timestamp:
        pointers.append("/timestamp")
    if job is not UNSET and not isinstance(job, str):
        pointers.append("/job")
    if urn is not UNSET and is_usable(job):
        pointers.append("/urn")
    return tuple(pointers)


def _value(last: dict[str, Member], key: str) -> Any:
    return last[key].value if key in last else UNSET


def _of_kinds(last: dict[str, Member], kinds: Mapping[str, type]) -> dict[str, Any]:
    return {key: _of_kind(last, key, kind) for key, kind in kinds.items()}


def _of_kind(last: dict[str, Member], key: str, kind: type) -> Any:
    value = _value(last, key)
    if kind is int:
        return value if type(value) is int and value in _INT64 else None
    return without_surrogates(value) if isinstance(value, str) else None


def _nested(text: str, member: Member | None) -> dict[str, Member] | None:
    if member is None or not isinstance(member.value, dict):
        return None
    return {inner.key: inner for inner in members(text, start=member.start, decoder=LENIENT)[0]}


def _data(text: str, member: Member | None, allow_list_data: bool) -> str | None:
    if member is None:
        return None
    if isinstance(member.value, dict):
        return without_surrogates(text[member.start : member.end])
    return "{}" if allow_list_data and member.value == [] else None


def _extra(text: str, meta: dict[str, Member]) -> list[tuple[str, str]]:
    return [
        (without_surrogates(key), without_surrogates(text[member.start : member.end]))
        for key, member in meta.items()
        if is_extra(key)
    ]


def is_extra(key: str) -> bool:
    """Whether a key of `meta` belongs to `meta.extra`: not one of its own columns, not a forbidden one."""
    return key not in CORE_META_KEYS and key not in FORBIDDEN_META_KEYS
