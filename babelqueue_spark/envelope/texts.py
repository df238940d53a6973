"""Columns to JSON text: what `encode` and the splices write, each a string array."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.envelope.scan import octets_of

#: What a JSON string must escape; everything else is written as it is.
NEEDS_ESCAPE = r'["\\\x00-\x1f]'


def joined(*pieces: Any) -> Any:
    """Join pieces (string arrays or constants) row by row; null where one of them is null."""
    return pc.binary_join_element_wise(*pieces, "")


def escaped(column: Any) -> Any:
    """Return the string `column` as it stands between the quotes of JSON strings; nulls stay."""
    if not must_escape(column):
        return column
    concerned = pc.fill_null(pc.match_substring_regex(column, NEEDS_ESCAPE), False)
    replacements = [
        json.dumps(value, ensure_ascii=False)[1:-1] for value in column.filter(concerned).to_pylist()
    ]
    return pc.replace_with_mask(column, concerned, pa.array(replacements, pa.string()))


def must_escape(column: Any) -> bool:
    """Return whether a string or binary `column` has a quote, a backslash or a control character."""
    octets, bounds = octets_of(column)
    octets = octets[bounds[0] : bounds[-1]]
    return bool(((octets < ord(" ")) | (octets == ord('"')) | (octets == ord("\\"))).any())


def digits(column: Any) -> Any:
    """Return the integer `column` in decimal digits; nulls stay."""
    return column.cast(pa.string())


def milliseconds(column: Any) -> Any:
    """Return the timestamp `column` as digits of epoch milliseconds; nulls stay."""
    return digits(pc.divide(column.cast(pa.int64()), 1000))


def dead_letter_block(blocks: Any) -> Any:
    """Return each dead letter block (a struct of DEAD_LETTER_TYPE) as a JSON object of all its seven members.

    A null member is written as `null`; a null struct stays null.
    """
    members = [
        ("reason", _quoted),
        ("error", _quoted),
        ("exception", _quoted),
        ("failed_at", milliseconds),
        ("original_queue", _quoted),
        ("attempts", digits),
        ("lang", _quoted),
    ]
    pieces: list[Any] = []
    for name, written in members:
        pieces += [f',"{name}":', pc.fill_null(written(pc.struct_field(blocks, name)), "null")]
    pieces[0] = pieces[0].replace(",", "{", 1)
    return pc.if_else(pc.is_valid(blocks), joined(*pieces, "}"), None)


def _quoted(column: Any) -> Any:
    return joined('"', escaped(column), '"')
