"""Bodies to columns.

Three ways, each for what the one before could not prove. The *typed* way parses a body into a Struct that
holds exactly the canonical envelope, and then shows for a whole slice at once that the parse overlooked
nothing. The *loose* way takes, body by body, what else is well formed: dead letters, unknown keys, retries
beyond nine. The *strict* way (`strict.py`) decides everything else.

The parser (msgspec) checks syntax and types in every occurrence of a key, but skips over `data`. What it
does not see there: bytes that are no UTF-8, numbers that are no finite double, nesting beyond MAX_DEPTH,
and an earlier `data` that the last one hides.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct

from babelqueue_spark.envelope.columns import (
    DEAD_LETTER_TYPE,
    ENVELOPE_SCHEMA,
    META_TYPE,
    TIMESTAMP,
)
from babelqueue_spark.envelope.jsontext import MAX_DEPTH, MAX_INT_DIGITS
from babelqueue_spark.envelope.reasons import verdict
from babelqueue_spark.envelope.strict import Row, examine, identity, is_extra, is_utf8

#: Rows decoded at a time: few enough that their objects stay in the processor's cache.
SLICE_ROWS = 2048

_OneDigit = Annotated[int, msgspec.Meta(ge=0, le=9)]
_ThirteenDigits = Annotated[int, msgspec.Meta(ge=10**12, lt=10**13)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Meta(Struct, gc=False, forbid_unknown_fields=True):
    id: str
    queue: str
    lang: str
    schema_version: Literal[1]
    created_at: _ThirteenDigits


class _Envelope(Struct, gc=False, forbid_unknown_fields=True):
    job: str
    trace_id: str
    data: Raw
    meta: _Meta
    attempts: _OneDigit


class _LooseMeta(Struct, gc=False):
    id: str | None = None
    queue: str | None = None
    lang: str | None = None
    schema_version: _Int64 | None = None
    created_at: _Int64 | None = None


class _LooseDeadLetter(Struct, gc=False):
    reason: str | None = None
    error: str | None = None
    exception: str | None = None
    failed_at: _Int64 | None = None
    original_queue: str | None = None
    attempts: _Int64 | None = None
    lang: str | None = None


class _LooseEnvelope(Struct, gc=False):
    data: Raw
    job: str | None = None
    urn: str | None = None
    trace_id: str | None = None
    meta: _LooseMeta | None = None
    attempts: _Int64 | None = None
    dead_letter: _LooseDeadLetter | None = None


class _MetaText(Struct, gc=False):
    meta: dict[str, Raw] | None


_parse = msgspec.json.Decoder(_Envelope).decode
_parse_loosely = msgspec.json.Decoder(_LooseEnvelope).decode
_parse_meta_text = msgspec.json.Decoder(_MetaText).decode

#: Length of a canonical body without its six texts.
_FRAME_LENGTH = len(
    '{"job":"","trace_id":"","data":,"meta":{"id":"","queue":"","lang":"","schema_version":1,'
    '"created_at":0000000000000},"attempts":0}'
)
_STAND_IN = _Envelope("", "", Raw(b"{}"), _Meta("", "", "", 1, 10**12), 0)

#: A number with an exponent of three digits or more, by its exponent (in a string it would hardly be
#: followed by one of these characters).
_LONG_EXPONENTS = tuple(
    re.compile(rb"%c(?<=[0-9]%c)\+?[0-9]{3,}[,\]} \t\r\n]" % (e, e)) for e in b"eE"
)
#: A finite double with a shorter exponent than that and yet out of range has over 200 digits in a row;
#: of those every _STRIDE-th byte gives at least eight.
_STRIDE = 24
_DIGITS_IN_A_ROW = re.compile(rb"0{8}")
_DIGITS_TO_ZERO = bytes(ord("0") if byte in b"0123456789" else 1 for byte in range(256))

#: The years 1 to 9999, the timestamps of Spark and Python.
_TIMESTAMP_MS = range(-62_135_596_800_000, 253_402_300_800_000)
_INT32 = range(-(2**31), 2**31)
_NO_TEXTS = pa.array([], pa.string())


def decode(bodies: Any, *, allow_list_data: bool = False) -> Any:
    """Decode message bodies into a RecordBatch of ENVELOPE_SCHEMA, one row per body, in order.

    `bodies` is an Arrow array of binary or string type. No body raises: what is wrong with one is named in
    its row's `error`, a code of `Reason` (null = accepted), beside whatever fields could be read. A null
    body is poison. `allow_list_data` reads an empty list in `data` (what PHP makes of `{}`) as `{}`.
    """
    binary = bodies.cast(pa.binary())
    slices = [
        _decode_slice(binary.slice(start, SLICE_ROWS), allow_list_data)
        for start in range(0, len(binary), SLICE_ROWS)
    ]
    return slices[0] if len(slices) == 1 else _one_batch(slices)


def validate(bodies: Any) -> Any:
    """The reason code of each body as a string array; null = accepted. Never raises for a body."""
    return decode(bodies).column("error")


def _one_batch(batches: list[Any]) -> Any:
    table = pa.Table.from_batches(batches, ENVELOPE_SCHEMA).combine_chunks()
    return table.to_batches()[0] if batches else ENVELOPE_SCHEMA.empty_table().to_batches()[0]


def _decode_slice(bodies: Any, allow_list_data: bool) -> Any:
    texts = bodies.to_pylist()
    envelopes, failed = _parse_all(texts)
    if len(failed) == len(texts):
        return _batch(*_read_all(texts, allow_list_data))
    usual = _typed_columns(envelopes)
    odd = sorted(failed.union(_unproven(bodies, texts, envelopes, usual, failed)))
    if not odd:
        return _batch(usual, pa.repeat(False, len(texts)))
    columns, poison = _read_all([texts[row] for row in odd], allow_list_data)
    usual["poison"] = pa.repeat(False, len(texts))
    columns = _merged(usual, {**columns, "poison": poison}, odd)
    return _batch(columns, columns.pop("poison"))


def _batch(columns: dict[str, Any], poison: Any) -> Any:
    return pa.RecordBatch.from_arrays([*columns.values(), verdict(columns, poison)], schema=ENVELOPE_SCHEMA)


def _merged(usual: dict[str, Any], odd: dict[str, Any], odd_rows: list[int]) -> dict[str, Any]:
    """The columns `usual` with those of `odd` in the rows `odd_rows`."""
    rows = list(range(len(usual["job"])))
    for position, row in enumerate(odd_rows, start=len(rows)):
        rows[row] = position
    indices = pa.array(rows, pa.int32())
    return {name: pa.concat_arrays([usual[name], odd[name]]).take(indices) for name in usual}


# --- the typed way ----------------------------------------------------------------------------------------


def _parse_all(texts: list[Any]) -> tuple[list[_Envelope], set[int]]:
    """The parsed bodies, with a stand-in for each that does not parse, and the rows of those."""
    envelopes: list[_Envelope] = []
    failed: set[int] = set()
    append = envelopes.append
    for text in texts:
        try:
            append(_parse(text))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            failed.add(len(envelopes))
            append(_STAND_IN)
    return envelopes, failed


def _typed_columns(envelopes: list[_Envelope]) -> dict[str, Any]:
    rows = len(envelopes)
    metas = [envelope.meta for envelope in envelopes]
    created_at = pa.array([meta.created_at for meta in metas], pa.int64())
    meta_columns = [
        pa.array([meta.id for meta in metas], pa.string()),
        pa.array([meta.queue for meta in metas], pa.string()),
        pa.array([meta.lang for meta in metas], pa.string()),
        pa.repeat(pa.scalar(1, pa.int32()), rows),
        pc.multiply(created_at, 1000).cast(TIMESTAMP),
        pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows + 1), _NO_TEXTS, _NO_TEXTS),
    ]
    return {
        "job": pa.array([envelope.job for envelope in envelopes], pa.string()),
        "trace_id": pa.array([envelope.trace_id for envelope in envelopes], pa.string()),
        "data": _joined([envelope.data for envelope in envelopes]),
        "meta": pa.StructArray.from_arrays(meta_columns, fields=list(META_TYPE)),
        "attempts": pa.array([envelope.attempts for envelope in envelopes], pa.int32()),
        "dead_letter": pa.nulls(rows, DEAD_LETTER_TYPE),
    }


def _joined(texts: list[Raw]) -> Any:
    """A string array of `texts`, not yet known to be UTF-8."""
    offsets = array("i", accumulate(map(len, texts), initial=0))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)))


def _unproven(
    bodies: Any, texts: list[Any], envelopes: list[_Envelope], columns: dict[str, Any], failed: set[int]
) -> Iterator[int]:
    """The rows whose parse may have overlooked something."""
    data = columns["data"]
    yield from _not_utf8(bodies, texts)
    yield from _rows(pc.invert(pc.starts_with(data, "{")))
    yield from _too_big_numbers(data)
    for row in _rows(pc.greater_equal(pc.binary_length(data), 2 * MAX_DEPTH)):
        if _may_be_deep(texts[row]):
            yield row
    for row in _rows(pc.not_equal(pc.binary_length(bodies), _canonical_length(columns))):
        if row not in failed and not _shows_all_data(texts[row], envelopes[row].data):
            yield row


def _rows(mask: Any) -> list[int]:
    rows: list[int] = pc.indices_nonzero(mask).to_pylist()
    return rows


def _canonical_length(columns: dict[str, Any]) -> Any:
    """The length of each body if it is compact, escapes nothing and repeats no key."""
    texts = [columns["job"], columns["trace_id"], columns["data"], *columns["meta"].flatten()[:3]]
    return reduce(pc.add, map(pc.binary_length, texts), _FRAME_LENGTH)


def _not_utf8(bodies: Any, texts: list[Any]) -> list[int]:
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return [row for row, text in enumerate(texts) if text is not None and not is_utf8(text)]
    return []


def _too_big_numbers(data: Any) -> Iterator[int]:
    """The rows of `data` (whole, from offset 0) that may hold a number that is no finite double."""
    _, offsets_buffer, text_buffer = data.buffers()
    offsets = memoryview(offsets_buffer).cast("i")
    for position in _too_big_number_positions(text_buffer.to_pybytes()):
        yield bisect_right(offsets, position) - 1


def _too_big_number_positions(text: bytes) -> Iterator[int]:
    for exponent in _LONG_EXPONENTS:
        for match in exponent.finditer(text):
            yield match.start()
    for match in _DIGITS_IN_A_ROW.finditer(text[::_STRIDE].translate(_DIGITS_TO_ZERO)):
        yield match.start() * _STRIDE


def _may_be_deep(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > MAX_DEPTH


def _shows_all_data(text: bytes, data: Raw) -> bool:
    """Whether `data` is surely the value of the only key `data`, of which no escape hides another."""
    shown = bytes(data)
    return text.count(b'"data"') == shown.count(b'"data"') + 1 and text.count(b"\\u") == shown.count(b"\\u")


# --- the other ways ---------------------------------------------------------------------------------------


def _read_all(texts: list[Any], allow_list_data: bool) -> tuple[dict[str, Any], Any]:
    """The columns of `texts`, read one by one, and which of them are poison."""
    rows = [_read_loosely(text) or examine(text, allow_list_data=allow_list_data) for text in texts]
    fields = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
    return _columns(fields), pa.array(fields["poison"])


def _read_loosely(text: bytes | None) -> Row | None:
    """The fields of a body, or None when it takes the strict way to be sure of them."""
    if text is None or len(text) > MAX_INT_DIGITS or _may_be_deep(text) or not is_utf8(text):
        return None
    try:
        envelope = _parse_loosely(text)
        meta_text = _parse_meta_text(text).meta if envelope.meta else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    data = bytes(envelope.data)
    if not (data.startswith(b"{") and _shows_all_data(text, envelope.data)):
        return None
    if any(True for _ in _too_big_number_positions(data)):
        return None
    return _loose_row(envelope, data.decode(), meta_text or {})


def _loose_row(envelope: _LooseEnvelope, data: str, meta_text: dict[str, Raw]) -> Row:
    meta = envelope.meta or _LooseMeta()
    dead_letter = envelope.dead_letter or _LooseDeadLetter()
    return Row(
        job=identity(envelope.job, envelope.urn),
        trace_id=envelope.trace_id,
        data=data,
        has_meta=envelope.meta is not None,
        id=meta.id,
        queue=meta.queue,
        lang=meta.lang,
        schema_version=meta.schema_version,
        created_at=meta.created_at,
        extra=[(key, bytes(value).decode()) for key, value in meta_text.items() if is_extra(key)],
        attempts=envelope.attempts,
        has_dead_letter=envelope.dead_letter is not None,
        reason=dead_letter.reason,
        error=dead_letter.error,
        exception=dead_letter.exception,
        failed_at=dead_letter.failed_at,
        original_queue=dead_letter.original_queue,
        dead_letter_attempts=dead_letter.attempts,
        dead_letter_lang=dead_letter.lang,
    )


def _columns(fields: dict[str, Any]) -> dict[str, Any]:
    """The columns of `Row` fields, each given as a sequence of its values."""
    meta = [
        _texts(fields["id"]),
        _texts(fields["queue"]),
        _texts(fields["lang"]),
        pa.array([value if value is not None and value in _INT32 else None for value in fields["schema_version"]], pa.int32()),
        _timestamps(fields["created_at"]),
        pa.array(fields["extra"], META_TYPE.field("extra").type),
    ]
    dead_letter = [
        _texts(fields["reason"]),
        _texts(fields["error"]),
        _texts(fields["exception"]),
        _timestamps(fields["failed_at"]),
        _texts(fields["original_queue"]),
        _saturated(fields["dead_letter_attempts"]),
        _texts(fields["dead_letter_lang"]),
    ]
    return {
        "job": _texts(fields["job"]),
        "trace_id": _texts(fields["trace_id"]),
        "data": _texts(fields["data"]),
        "meta": _structs(META_TYPE, meta, fields["has_meta"]),
        "attempts": _saturated(fields["attempts"]),
        "dead_letter": _structs(DEAD_LETTER_TYPE, dead_letter, fields["has_dead_letter"]),
    }


def _structs(struct_type: Any, columns: list[Any], present: Sequence[bool]) -> Any:
    return pa.StructArray.from_arrays(columns, fields=list(struct_type), mask=pc.invert(pa.array(present)))


def _texts(values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string())


def _timestamps(values: Sequence[int | None]) -> Any:
    milliseconds = pa.array([_within(_TIMESTAMP_MS, value) for value in values], pa.int64())
    return pc.multiply(milliseconds, 1000).cast(TIMESTAMP)


def _within(limits: range, value: int | None) -> int | None:
    return value if value is not None and value in limits else None


def _saturated(values: Sequence[int | None]) -> Any:
    low, high = _INT32[0], _INT32[-1]
    return pa.array([None if value is None else min(max(value, low), high) for value in values], pa.int32())
