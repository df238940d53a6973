"""The general way to read one body: slower than the columnar one, exact on everything.

A body is poison when it is not exactly one JSON object of valid UTF-8, or when a known member has a wrong
type in any of its occurrences. Its fields are then still shown where they have the type of the contract.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
from msgspec import UNSET

from babelqueue_spark.envelope.columns import CORE_META_KEYS, DEAD_LETTER_TYPE, FORBIDDEN_META_KEYS, is_blank
from babelqueue_spark.envelope.jsontext import (
    NumberError,
    Pairs,
    check_data,
    document_pairs,
    is_utf8,
    with_room,
    without_surrogates,
)
from babelqueue_spark.envelope.outline import Outline
from babelqueue_spark.envelope.rows import DeadLetter, Meta, Row

Kind = type | dict[str, Any]

META_KINDS: dict[str, type] = {"id": str, "queue": str, "lang": str, "schema_version": int, "created_at": int}
DEAD_LETTER_KINDS: dict[str, type] = {
    field.name: str if pa.types.is_string(field.type) else int for field in DEAD_LETTER_TYPE
}
ENVELOPE_KINDS: dict[str, Kind] = {
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
    try:
        pairs, poison = _pairs(body, allow_list_data)
    except ValueError:
        return Row(poison=True)
    return _row(body, pairs, poison, allow_list_data)


def is_envelope(body: bytes) -> bool:
    """Return whether a body is not poison and names a message. Raises RecursionError, unlike `examine`."""
    try:
        pairs, poison = _pairs(body)
    except ValueError:
        return False
    last = dict(pairs)
    return not poison and (is_usable(last.get("job")) or is_usable(last.get("urn")))


def _pairs(body: bytes, allow_list_data: bool = False) -> tuple[Pairs, bool]:
    """Return the members of a body, and whether they make it poison. ValueError: it is no object."""
    try:
        pairs = document_pairs(body)
        check_data(body, pairs)
    except NumberError:
        return document_pairs(body, lenient=True), True
    return pairs, not (is_utf8(body) and _well_typed(pairs, ENVELOPE_KINDS, allow_list_data))


def _well_typed(pairs: Pairs, kinds: Mapping[str, Kind], allow_list_data: bool = False) -> bool:
    for key, value in pairs:  # a generator for each of many objects would take most of the time
        if key not in kinds or value is None or _fits(value, kinds[key]):
            continue
        if not (allow_list_data and key == "data" and value == []):
            return False
    return True


def _fits(value: Any, kind: Kind) -> bool:
    if kind is int:
        return type(value) is int and value in _INT64
    if isinstance(kind, dict):
        return isinstance(value, tuple) and _well_typed(value, kind)
    return isinstance(value, tuple if kind is dict else kind)


def _row(body: bytes, pairs: Pairs, poison: bool, allow_list_data: bool) -> Row:
    last = dict(pairs)
    texts = _last_texts(body, pairs, {"data", "meta"})
    meta = _object(last.get("meta"))
    dead_letter = _object(last.get("dead_letter"))
    job, urn = last.get("job", UNSET), last.get("urn", UNSET)
    return Row(
        job=identity(job, urn),
        trace_id=_of_kind(last, "trace_id", str),
        data=_data(texts, last.get("data"), allow_list_data),
        meta=None if meta is None else Meta(**_of_kinds(meta, META_KINDS)),
        extra=_extra(texts["meta"], last["meta"]) if meta else [],
        attempts=_of_kind(last, "attempts", int),
        dead_letter=None if dead_letter is None else DeadLetter(**_of_kinds(dead_letter, DEAD_LETTER_KINDS)),
        poison=poison,
        ignored=ignored_keys(job, urn, "timestamp" in last, meta or ()),
    )


def is_usable(identity: Any) -> bool:
    """Return whether a value names a message: a string that is not blank."""
    return isinstance(identity, str) and not is_blank(identity)


def identity(job: Any, urn: Any) -> str | None:
    """Return the URN of a body: a usable `job`, else a usable `urn`, else a blank `job`; UNSET without."""
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


def _of_kinds(last: dict[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    return {key: _of_kind(last, key, kind) for key, kind in kinds.items()}


def _of_kind(last: dict[str, Any], key: str, kind: type) -> Any:
    value = last.get(key)
    if kind is int:
        return value if type(value) is int and value in _INT64 else None
    return without_surrogates(value) if isinstance(value, str) else None


def _object(value: Any) -> dict[str, Any] | None:
    """Return the members that count of an object; None when the value is none."""
    return dict(value) if isinstance(value, tuple) else None


def _last_texts(body: bytes, pairs: Pairs, keys: Collection[str]) -> dict[str, bytes]:
    """Return the text of the last value of each of these keys that the object `body` has."""
    numbers = {key: number for number, (key, _) in enumerate(pairs) if key in keys}
    if not numbers:
        return {}
    outline = Outline(body)
    return {key: outline.value(number) for key, number in numbers.items()}


def _data(texts: dict[str, bytes], value: Any, allow_list_data: bool) -> str | None:
    if isinstance(value, tuple):
        return _shown(texts["data"])
    return "{}" if allow_list_data and value == [] else None


def _extra(text: bytes, pairs: Pairs) -> list[tuple[str, str]]:
    """Return unknown keys of a `meta` with the texts of their last values, in the order of the first."""
    keys = {key: None for key, _ in pairs if is_extra(key)}
    texts = _last_texts(text, pairs, keys)
    return [(without_surrogates(key), _shown(texts[key])) for key in keys]


def _shown(text: bytes) -> str:
    return without_surrogates(text.decode("utf-8", "surrogateescape"))


def is_extra(key: str) -> bool:
    """Return whether a key of `meta` belongs to `meta.extra`: no column has it, and it is not forbidden."""
    return key not in CORE_META_KEYS and key not in FORBIDDEN_META_KEYS
