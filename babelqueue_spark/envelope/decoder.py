"""Bodies to columns.

Three ways, each for what the one before could not prove. The *typed* way parses a body into a Struct that
holds exactly the canonical envelope, and then shows for all at once that the parse overlooked nothing. The
*loose* way takes, body by body, what else is well formed: unknown keys, `urn`, retries beyond nine. The
*strict* way (`strict.py`) decides everything else.

The parser (msgspec) checks syntax and types in every occurrence of a key, but skips over `data`. What it
does not see there: bytes that are no UTF-8, numbers that are no finite double, nesting beyond MAX_DEPTH,
and an earlier `data` that the last one hides.
"""

import logging
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from itertools import accumulate, chain
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw, Struct, UnsetType

from babelqueue_spark.envelope.columns import (
    ENVELOPE_SCHEMA,
    META_TYPE,
    TIMESTAMP,
)
from babelqueue_spark.envelope.jsontext import MAX_INT_DIGITS, deep_rows, may_be_deep, too_big_numbers
from babelqueue_spark.envelope.reasons import is_blank
from babelqueue_spark.envelope.rows import DeadLetter, Int64, Meta, Row, batch_of, dead_letter_column
from babelqueue_spark.envelope.strict import examine, identity, ignored_keys, is_extra, is_utf8

_logger = logging.getLogger(__name__)

#: Rows parsed at a time: few enough for their objects to stay in the processor's cache.
SLICE_ROWS = 1024

_OneDigit = Annotated[int, msgspec.Meta(ge=0, le=9)]
_ThirteenDigits = Annotated[int, msgspec.Meta(ge=10**12, lt=10**13)]


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
    dead_letter: DeadLetter | None = None


class _LooseEnvelope(Struct, gc=False):
    data: Raw
    job: str | UnsetType | None = UNSET
    urn: str | UnsetType | None = UNSET
    timestamp: Raw | UnsetType = UNSET
    trace_id: str | None = None
    meta: Meta | None = None
    attempts: Int64 | None = None
    dead_letter: DeadLetter | None = None


class _MetaText(Struct, gc=False):
    meta: dict[str, Raw] | None = None


_parse_body = msgspec.json.Decoder(_Envelope).decode
_parse_loosely = msgspec.json.Decoder(_LooseEnvelope).decode
_parse_meta_text = msgspec.json.Decoder(_MetaText).decode

#: Length of a canonical body without its six texts.
_FRAME_LENGTH = len(
    '{"job":"","trace_id":"","data":,"meta":{"id":"","queue":"","lang":"","schema_version":1,'
    '"created_at":0000000000000},"attempts":0}'
)
_STAND_IN = _Envelope("", "", Raw(b"{}"), _Meta("", "", "", 1, 10**12), 0)

_NO_TEXTS = pa.array([], pa.string())


def decode(bodies: Any, *, allow_list_data: bool = False) -> Any:
    """Decode message bodies into a RecordBatch of ENVELOPE_SCHEMA, one row per body, in order.

    `bodies` is an Arrow array of binary or string type. No body raises: what is wrong with one is named in
    its row's `error`, a code of `Reason` (null = accepted), beside whatever fields could be read. A null
    body is poison. `allow_list_data` reads an empty list in `data` (what PHP makes of `{}`) as `{}`.
    """
    binary = bodies.cast(pa.binary())
    usual, doubtful = _parse(binary)
    odd = sorted(doubtful.union(_unproven(binary, usual, doubtful)))
    return _replaced(usual, odd, _read_all(binary.take(pa.array(odd)), allow_list_data)) if odd else usual


def validate(bodies: Any) -> Any:
    """The reason code of each body as a string array; null = accepted. Never raises for a body."""
    return decode(bodies).column("error")


def canonical(bodies: Any) -> Any:
    """Which of the binary `bodies` are accepted and have the canonical members only, each of them once.

    Not all such bodies are found out, only those of the typed way: `attempts` of one digit, a usual time.
    """
    usual, doubtful = _parse(bodies)
    odd = doubtful.union(_unproven(bodies, usual, doubtful))
    proven = pa.array([row not in odd for row in range(len(bodies))], pa.bool_())
    return pc.and_(proven, pc.is_null(usual.column("dead_letter")))


def _replaced(usual: Any, odd_rows: list[int], odd: Any) -> Any:
    """The batch `usual` with the batch `odd` in the rows `odd_rows`."""
    rows = list(range(usual.num_rows))
    for position, row in enumerate(odd_rows, start=usual.num_rows):
        rows[row] = position
    both = pa.Table.from_batches([usual, odd]).combine_chunks().to_batches()[0]
    return both.take(pa.array(rows, pa.int32()))


# --- the typed way ----------------------------------------------------------------------------------------


def _parse(bodies: Any) -> tuple[Any, set[int]]:
    """The batch of the typed parse, and the rows that did not parse or may hold a number out of range."""
    slices = []
    doubtful: set[int] = set()
    for start in range(0, len(bodies), SLICE_ROWS):
        envelopes, failed = _parse_slice(bodies.slice(start, SLICE_ROWS).to_pylist())
        values = [envelope.data for envelope in envelopes]
        offsets, data = [0, *accumulate(map(len, values))], b"".join(values)
        failed.update(bisect_right(offsets, position) - 1 for position in too_big_numbers(data))
        doubtful.update(start + row for row in failed)
        slices.append(_leaves(envelopes, offsets, data))
    return _typed_batch([pa.concat_arrays(leaf) for leaf in zip(*slices, strict=True)]), doubtful


def _parse_slice(texts: list[Any]) -> tuple[list[_Envelope], set[int]]:
    """The parsed bodies, with a stand-in for each that does not parse, and the rows of those."""
    envelopes: list[_Envelope] = []
    failed: set[int] = set()
    append = envelopes.append
    for text in texts:
        try:
            append(_parse_body(text))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            failed.add(len(envelopes))
            append(_STAND_IN)
    return envelopes, failed


def _leaves(envelopes: list[_Envelope], offsets: list[int], data: bytes) -> list[Any]:
    """The columns of a slice, structs taken apart; `data` is not yet known to be UTF-8."""
    metas = [envelope.meta for envelope in envelopes]
    data_offsets = pa.py_buffer(array("i", offsets))
    return [
        pa.array([envelope.job for envelope in envelopes], pa.string()),
        pa.array([envelope.trace_id for envelope in envelopes], pa.string()),
        pa.StringArray.from_buffers(len(envelopes), data_offsets, pa.py_buffer(data)),
        pa.array([meta.id for meta in metas], pa.string()),
        pa.array([meta.queue for meta in metas], pa.string()),
        pa.array([meta.lang for meta in metas], pa.string()),
        pa.array([meta.created_at for meta in metas], pa.int64()),
        pa.array([envelope.attempts for envelope in envelopes], pa.int32()),
        dead_letter_column([envelope.dead_letter for envelope in envelopes]),
    ]


def _typed_batch(leaves: list[Any]) -> Any:
    if not leaves:
        return pa.RecordBatch.from_pylist([], ENVELOPE_SCHEMA)
    job, trace_id, data, message_id, queue, lang, created_at, attempts, dead_letter = leaves
    rows = len(job)
    version = pa.repeat(pa.scalar(1, pa.int32()), rows)
    extra = pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows + 1), _NO_TEXTS, _NO_TEXTS)
    meta = [message_id, queue, lang, version, pc.multiply(created_at, 1000).cast(TIMESTAMP), extra]
    columns = [
        job,
        trace_id,
        data,
        pa.StructArray.from_arrays(meta, fields=list(META_TYPE)),
        attempts,
        dead_letter,
        pa.nulls(rows, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENVELOPE_SCHEMA)


def _unproven(bodies: Any, batch: Any, doubtful: set[int]) -> Iterator[int]:
    """Further rows of the typed `batch` in which the parse may have overlooked something, or refused ones."""
    data = batch.column("data")
    yield from _not_utf8(bodies)
    yield from _rows(pc.invert(pc.starts_with(data, "{")))
    yield from _rows(is_blank(batch.column("job")))
    yield from _rows(is_blank(batch.column("trace_id")))
    yield from deep_rows(bodies)
    unusual = [row for row in _rows(_is_not_compact(bodies, batch)) if row not in doubtful]
    places = pa.array(unusual, pa.int32())
    texts = zip(bodies.take(places).to_pylist(), data.cast(pa.binary()).take(places).to_pylist(), strict=True)
    yield from (
        row for row, (body, shown) in zip(unusual, texts, strict=True) if not _shows_all_data(body, shown)
    )


def _rows(mask: Any) -> list[int]:
    rows: list[int] = pc.indices_nonzero(mask).to_pylist()
    return rows


def _is_not_compact(bodies: Any, batch: Any) -> Any:
    """Which bodies are longer than one without spaces, escapes, repeated keys and dead letter block."""
    job, trace_id, data, meta = batch.columns[:4]
    texts = [job, trace_id, data, *meta.flatten()[:3]]
    return pc.not_equal(pc.binary_length(bodies), reduce(pc.add, map(pc.binary_length, texts), _FRAME_LENGTH))


def _not_utf8(bodies: Any) -> list[int]:
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return [row for row, text in enumerate(bodies.to_pylist()) if text is not None and not is_utf8(text)]
    return []


def _shows_all_data(text: bytes, data: bytes) -> bool:
    """Whether `data` is surely the value of the only key `data`, of which no escape hides another."""
    return text.count(b'"data"') == data.count(b'"data"') + 1 and text.count(b"\\u") == data.count(b"\\u")


# --- the other ways ---------------------------------------------------------------------------------------


def _read_all(bodies: Any, allow_list_data: bool) -> Any:
    """The batch of `bodies`, at least one, read one by one."""
    rows = [
        _read_loosely(body) or examine(body, allow_list_data=allow_list_data) for body in bodies.to_pylist()
    ]
    for pointer, count in Counter(chain.from_iterable(row.ignored for row in rows)).items():
        _logger.warning("Ignored the envelope key %s in %d bodies: it must not be there.", pointer, count)
    return batch_of(rows)


def _read_loosely(text: bytes | None) -> Row | None:
    """The fields of a body, or None when it takes the strict way to be sure of them."""
    if text is None or len(text) > MAX_INT_DIGITS or may_be_deep(text) or not is_utf8(text):
        return None
    try:
        envelope = _parse_loosely(text)
        meta_text = _parse_meta_text(text).meta or {}
    except (msgspec.MsgspecError, RecursionError):
        return None
    data = bytes(envelope.data)
    if (
        not data.startswith(b"{")
        or not _shows_all_data(text, data)
        or any(True for _ in too_big_numbers(data))
    ):
        return None
    return Row(
        job=identity(envelope.job, envelope.urn),
        trace_id=envelope.trace_id,
        data=data.decode(),
        meta=envelope.meta,
        extra=[(key, bytes(value).decode()) for key, value in meta_text.items() if is_extra(key)],
        attempts=envelope.attempts,
        dead_letter=envelope.dead_letter,
        ignored=ignored_keys(envelope.job, envelope.urn, envelope.timestamp is not UNSET, meta_text),
    )
