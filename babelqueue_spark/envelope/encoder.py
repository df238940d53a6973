"""Columns to bodies: canonical envelopes, as the published SDKs write them."""

import json
from json import JSONDecoder
from typing import Any

import jiter
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.envelope.columns import BLANKS, SCHEMA_VERSION
from babelqueue_spark.envelope.jsontext import (
    DISTINCT,
    JSON_WHITESPACE,
    MAX_DEPTH,
    STRICT,
    has_lone_surrogate,
    is_utf8,
    with_room,
)
from babelqueue_spark.envelope.outline import too_deep
from babelqueue_spark.envelope.scan import beyond_limits, may_repeat_keys, no_values, slices
from babelqueue_spark.envelope.strict import is_extra
from babelqueue_spark.envelope.texts import dead_letter_block, digits, escaped, joined, milliseconds

_COLUMNS = ("job", "trace_id", "data", "meta", "attempts")


class EnvelopeError(ValueError):
    """A row that cannot be written as an envelope. Names the row, the field and the reason, no content."""

    def __init__(self, row: int, field: str, reason: str) -> None:
        """Take the row's index within the batch, the field's name (`meta.id`) and what is wrong with it."""
        super().__init__(f"row {row}: {field} {reason}")
        self.row = row
        self.field = field
        self.reason = reason


def encode(messages: Any) -> Any:
    """Encode a RecordBatch into bodies, a binary array of one body per row.

    Columns: job, trace_id, data (the text of a JSON object), meta (struct of id, queue, lang,
    schema_version, created_at and optionally extra, whose values are JSON texts), attempts, and optionally
    dead_letter, with the types of ENVELOPE_SCHEMA; all but dead_letter and extra must have a value. The
    blanks around job and trace_id go; data is written byte for byte as it is.

    Raises EnvelopeError for the first field found that is missing, or that readers would refuse, and for
    a column or a key of `extra` that an envelope must not have.
    """
    for name in messages.schema.names:
        if name not in (*_COLUMNS, "dead_letter"):
            raise EnvelopeError(0, name, "is not a field of an envelope")
    job, trace_id, data, meta, attempts = (_required(messages.column(name), name) for name in _COLUMNS)
    _check_data(data)
    bodies = joined(
        '{"job":"',
        escaped(_trimmed(job, "job")),
        '","trace_id":"',
        escaped(_trimmed(trace_id, "trace_id")),
        '","data":',
        data,
        *_meta_pieces(meta),
        '},"attempts":',
        digits(attempts),
        _dead_letter_text(messages),
        "}",
    )
    binary = bodies.cast(pa.binary())
    try:
        binary.cast(pa.string())
    except pa.ArrowInvalid:
        bad = next(row for row, body in enumerate(binary.to_pylist()) if not is_utf8(body))
        raise EnvelopeError(bad, "a text", "is not UTF-8") from None
    return binary


def _required(column: Any, field: str) -> Any:
    _refuse(pc.is_null(column), field, "is missing")
    return column


def _trimmed(column: Any, field: str) -> Any:
    trimmed = pc.ascii_trim(column, characters=BLANKS)
    _refuse(pc.equal(trimmed, ""), field, "is blank")
    return trimmed


def _refuse(failed: Any, field: str, reason: str) -> None:
    if pc.any(failed).as_py():
        raise EnvelopeError(pc.index(failed, True).as_py(), field, reason)


def _meta_pieces(meta: Any) -> list[Any]:
    version = _meta_field(meta, "schema_version")
    _refuse(pc.not_equal(version, SCHEMA_VERSION), "meta.schema_version", f"is not {SCHEMA_VERSION}")
    return [
        ',"meta":{"id":"',
        escaped(_meta_field(meta, "id")),
        '","queue":"',
        escaped(_meta_field(meta, "queue")),
        '","lang":"',
        escaped(_meta_field(meta, "lang")),
        f'","schema_version":{SCHEMA_VERSION},"created_at":',
        milliseconds(_meta_field(meta, "created_at")),
        _extra_text(meta),
    ]


def _meta_field(meta: Any, name: str) -> Any:
    return _required(pc.struct_field(meta, name), f"meta.{name}")


def _extra_text(meta: Any) -> Any:
    if meta.type.get_field_index("extra") < 0:
        return ""
    extra = pc.struct_field(meta, "extra")
    if not len(extra.keys):
        return ""
    return pa.array([_extra_members(row, entries or []) for row, entries in enumerate(extra.to_pylist())])


def _extra_members(row: int, entries: list[tuple[str, str | None]]) -> str:
    if len({key for key, _ in entries}) < len(entries):
        raise EnvelopeError(row, "meta.extra", "repeats a key")
    return "".join(_extra_member(row, key, "null" if text is None else text) for key, text in entries)


def _extra_member(row: int, key: str, text: str) -> str:
    if not is_extra(key):
        raise EnvelopeError(row, f"meta.{key}", "must not be among the extra keys")
    _check_json(row, "meta.extra", text, STRICT, MAX_DEPTH - 2)
    return f",{json.dumps(key, ensure_ascii=False)}:{text}"


def _dead_letter_text(messages: Any) -> Any:
    if "dead_letter" not in messages.schema.names:
        return ""
    blocks = messages.column("dead_letter")
    if blocks.null_count == len(blocks):
        return ""
    block = dead_letter_block(blocks)
    return pc.fill_null(joined(',"dead_letter":', block), "")


def _check_data(data: Any) -> None:
    if not pc.all(pc.starts_with(data, "{")).as_py():
        opening = pc.ascii_ltrim(data, characters=JSON_WHITESPACE)
        _refuse(pc.invert(pc.starts_with(opening, "{")), "data", "is not a JSON object")
    for start, part in slices(data.cast(pa.binary())):
        for row in _doubtful(part):
            _check_json(
                start + row, "data", part[row].as_py().decode("utf-8", "replace"), DISTINCT, MAX_DEPTH - 1
            )


def _doubtful(texts: Any) -> list[int]:
    """Return the rows of the binary array `texts` that take the slow check to be sure of them."""
    repeating = may_repeat_keys(texts)
    found = texts.take(pa.array(repeating, pa.int32())).to_pylist()
    repeating = [row for row, text in zip(repeating, found, strict=True) if not _is_distinct(text)]
    return sorted({*no_values(texts), *beyond_limits(texts, MAX_DEPTH - 1), *repeating})


def _is_distinct(text: bytes) -> bool:
    """Return whether `text` is surely strict JSON without a repeated key; numbers may be of any size."""
    try:
        jiter.from_json(text, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError:
        return False
    return True


def _check_json(row: int, field: str, text: str, decoder: JSONDecoder, depth: int) -> None:
    if too_deep(text.encode(), depth):
        raise EnvelopeError(row, field, "is nested too deep")
    try:
        with_room(decoder.decode, text)
    except ValueError:
        limits = " of finite numbers and distinct keys" if decoder is DISTINCT else ""
        raise EnvelopeError(row, field, f"is not strict JSON{limits}") from None
    if has_lone_surrogate(text):
        raise EnvelopeError(row, field, "has half a surrogate pair in a string")
