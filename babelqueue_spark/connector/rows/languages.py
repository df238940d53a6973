"""Keep to what consumers in every language read: numbers of 53 bits, and URNs that are no classes."""

from __future__ import annotations

import logging
import re

import pyarrow as pa
import pyarrow.compute as pc

logger = logging.getLogger(__name__)

_MOST = 2**53 - 1
"""The largest integer of JavaScript, and of whatever reads a number as a double."""
_DIGITS = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*')

_CLASS = r"\\|^[\w$.]*\.[A-Z][\w$]*$"
_MOST_WARNINGS = 100
_warned: set[str] = set()


def large_numbers_as_texts(texts: pa.StringArray) -> pa.StringArray:
    """Quote the integers beyond 2^53 - 1 in texts of JSON; every other byte stays."""
    long = pc.fill_null(pc.match_substring_regex(texts, f"[0-9]{{{_DIGITS}}}"), False)
    quoted = [_TOKEN.sub(_quoted, text) for text in texts.filter(long).to_pylist()]
    return pc.replace_with_mask(texts, long, pa.array(quoted, pa.string()))


def _quoted(token: re.Match[str]) -> str:
    text = token[0]
    digits = text.removeprefix("-")
    if not digits.isdecimal() or len(digits) < _DIGITS:
        return text
    return text if len(digits) == _DIGITS and int(digits) <= _MOST else f'"{text}"'


def warn_of_classes(jobs: pa.StringArray) -> None:
    """Warn once of each `job` that is the name of a class: no other language has it."""
    names = pc.unique(jobs).drop_null()
    for name in names.filter(pc.match_substring_regex(names, _CLASS)).to_pylist():
        if name not in _warned and len(_warned) < _MOST_WARNINGS:
            _warned.add(name)
            logger.warning(
                "job %r is the name of a class: use a URN that is the same in every language, such as "
                "urn:babel:orders:created",
                name,
            )
