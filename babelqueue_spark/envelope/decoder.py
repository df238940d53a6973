"""Bodies to columns.

Three ways, each for what the one before leaves. The *canonical* way (`canonical.py`) reads all bodies that
are written just as the SDKs write them, at once. The *loose* way parses, body by body, what else is well
formed: spaces, another order of keys, unknown keys, `urn`, dead letter blocks. The *strict* way
(`strict.py`) decides everything else.

The parser of the loose way (msgspec) checks syntax and types in every occurrence of a key, but skips over
`data`. What it does not see there: bytes that are no UTF-8, numbers that are no finite double, nesting
beyond MAX_DEPTH, and an earlier `data` that the last one hides.
"""

import logging
from collections import Counter
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, Struct, UnsetType

from babelqueue_spark.envelope import canonical
from babelqueue_spark.envelope.columns import envelope_schema
from babelqueue_spark.envelope.jsontext import MAX_DEPTH, is_utf8
from babelqueue_spark.envelope.outline import too_deep
from babelqueue_spark.envelope.rows import DeadLetter, Int64, Meta, Row, batch_of
from babelqueue_spark.envelope.scan import too_big_rows
from babelqueue_spark.envelope.strict import examine, identity, ignored_keys, is_extra
from babelqueue_spark.envelope.typed import typed

_logger = logging.getLogger(__name__)


class _CoreMeta(Meta, gc=False, forbid_unknown_fields=True):
    pass


class _CoreEnvelope(Struct, gc=False, forbid_unknown_fields=True):
    """The keys of the contract and no other."""

    data: Raw
    job: str
    urn: UnsetType = UNSET
    trace_id: str | None = None
    meta: _CoreMeta | None = None
    attempts: Int64 | None = None
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


_parse_core = msgspec.json.Decoder(_CoreEnvelope).decode
_parse_loosely = msgspec.json.Decoder(_LooseEnvelope).decode
_parse_meta_text = msgspec.json.Decoder(_MetaText).decode


_TEXT = pa.string()


def decode(bodies: Any, *, allow_list_data: bool = False, data_type: Any = _TEXT) -> Any:
    """Decode message bodies into a RecordBatch of ENVELOPE_SCHEMA, one row per body, in order.

    `bodies` is an Arrow array of binary or string type. No body raises: what is wrong with one is named in
    its row's `error`, a code of `Reason` (null = accepted), beside whatever fields could be read. A null
    body is poison. `allow_list_data` reads an empty list in `data` (what PHP makes of `{}`) as `{}`.
    `data_type` gives `data` another Arrow type than its JSON text, as `typed` says.
    """
    binary = bodies.cast(pa.binary()).fill_null(b"")
    usual = canonical.read(binary, data_type)
    if len(usual.rows) == len(binary):
        return usual.columns
    odd = np.setdiff1d(np.arange(len(binary)), usual.rows, assume_unique=True)
    others = _with_data(_read_all(binary.take(pa.array(odd)), allow_list_data), data_type)
    return _interleaved(usual.columns, usual.rows, others, odd)


def validate(bodies: Any, *, allow_list_data: bool = False) -> Any:
    """Return the reason code of each body as a string array; null = accepted. Never raises for a body."""
    return decode(bodies, allow_list_data=allow_list_data).column("error")


def _with_data(rows: Any, data_type: Any) -> Any:
    """Return the batch with the texts `data` as a column of their type."""
    if data_type == _TEXT:
        return rows
    columns = {
        **dict(zip(rows.schema.names, rows.columns, strict=True)),
        "data": typed(rows["data"], data_type),
    }
    return pa.RecordBatch.from_arrays([*columns.values()], schema=envelope_schema(data_type))


def _interleaved(left: Any, left_rows: canonical.Rows, right: Any, right_rows: canonical.Rows) -> Any:
    """Return the batch that has these rows from one batch and those from another."""
    if not len(left_rows):
        return right
    order = np.empty(len(left_rows) + len(right_rows), np.int64)
    order[left_rows] = np.arange(len(left_rows))
    order[right_rows] = np.arange(len(left_rows), len(order))
    both = pa.Table.from_batches([left, right]).combine_chunks().to_batches()[0]
    return both.take(pa.array(order))


def _read_all(bodies: Any, allow_list_data: bool) -> Any:
    """Return the batch of `bodies`, at least one, read one by one."""
    doubtful = too_big_rows(bodies)
    rows = [
        (row not in doubtful and _read_loosely(body)) or examine(body, allow_list_data=allow_list_data)
        for row, body in enumerate(bodies.to_pylist())
    ]
    for pointer, count in Counter(chain.from_iterable(row.ignored for row in rows)).items():
        _logger.warning("Ignored the envelope key %s in %d bodies: it must not be there.", pointer, count)
    return batch_of(rows)


def _read_loosely(text: bytes) -> Row | None:
    """Return the fields of a body, or None when it takes the strict way to be sure of them."""
    if too_deep(text, MAX_DEPTH) or not is_utf8(text):
        return None
    try:
        envelope, is_usual = _parsed(text)
        data = bytes(envelope.data)
        if not data.startswith(b"{") or not _shows_all_data(text, data):
            return None
        extra, ignored = ([], ()) if is_usual else _beside_the_contract(text, envelope)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return Row(
        job=identity(envelope.job, envelope.urn),
        trace_id=envelope.trace_id,
        data=data.decode(),
        meta=envelope.meta,
        extra=extra,
        attempts=envelope.attempts,
        dead_letter=envelope.dead_letter,
        ignored=ignored,
    )


def _parsed(text: bytes) -> tuple[_CoreEnvelope | _LooseEnvelope, bool]:
    """Return a body, and whether it has the keys of the contract only. Raises MsgspecError."""
    try:
        return _parse_core(text), True
    except msgspec.ValidationError:
        return _parse_loosely(text), False


def _beside_the_contract(text: bytes, envelope: Any) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the unknown keys of the `meta` of a body, and the keys to ignore. Raises MsgspecError."""
    meta = _parse_meta_text(text).meta or {}
    extra = [(key, bytes(value).decode()) for key, value in meta.items() if is_extra(key)]
    return extra, ignored_keys(envelope.job, envelope.urn, envelope.timestamp is not UNSET, meta)


def _shows_all_data(text: bytes, data: bytes) -> bool:
    """Return whether `data` is surely the value of the only key `data`, of which no escape hides another."""
    keys = text.count(b'"data"')
    return (keys == 1 or keys == data.count(b'"data"') + 1) and (
        b"\\u" not in text or text.count(b"\\u") == data.count(b"\\u")
    )
