"""JSON as text: what the members of an object are, and the limits of what is read.

Everything here is linear in the length of the text.
"""

import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from json import JSONDecoder
from typing import Any, TypeVar

import numpy as np

from babelqueue_spark.envelope.outline import Outline, too_deep
from babelqueue_spark.envelope.scan import has_endless_digits, may_be_too_big

T = TypeVar("T")
#: An object: keys and values, in order, repeated keys included. Objects within it are Pairs, arrays lists.
Pairs = tuple[tuple[str, Any], ...]

#: Deepest nesting of arrays and objects that is read, the root included. The published Python SDK gives
#: up between 900 and 1000, wherever its caller's stack leaves it; a fixed number gives a replay the same
#: verdict as the first read.
MAX_DEPTH = 900
#: Longest integer literal that is read (CPython's own limit for text to int).
MAX_INT_DIGITS = 4300
JSON_WHITESPACE = " \t\n\r"

_SURROGATE = re.compile("[\ud800-\udfff]")
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}")

#: Fewer digits than these are an integer within a double's range.
_DOUBLE_DIGITS = 300


class NumberError(ValueError):
    """A number that Python's reader knows, or could read, and that an envelope must not have."""


def _refuse_constant(name: str) -> Any:
    raise NumberError(f"{name} is not JSON")


def _bounded_int(literal: str) -> int:
    if len(literal) > MAX_INT_DIGITS and len(literal.lstrip("-")) > MAX_INT_DIGITS:
        raise NumberError("an integer is too long")
    return int(literal)


def _finite_float(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise NumberError("a number is out of a double's range")
    return number


def _finite_int(literal: str) -> int:
    if len(literal) > _DOUBLE_DIGITS:
        _finite_float(literal)
    return _bounded_int(literal)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _any_int(literal: str) -> int | None:
    return int(literal) if len(literal) <= MAX_INT_DIGITS else None


#: RFC 8259, with integers of bounded length; the same with finite numbers only (the rule for `data`), and
#: with no key twice in an object (what we write).
STRICT = JSONDecoder(parse_constant=_refuse_constant, parse_int=_bounded_int)
FINITE = JSONDecoder(parse_constant=_refuse_constant, parse_int=_finite_int, parse_float=_finite_float)
DISTINCT = JSONDecoder(
    parse_constant=_refuse_constant,
    parse_int=_finite_int,
    parse_float=_finite_float,
    object_pairs_hook=_distinct,
)
#: Objects as pairs, in order, repeated keys included: as STRICT reads them, the same where no integer is
#: long, and whatever Python's reader can make sense of, with and without long integers.
_PAIRS = JSONDecoder(parse_constant=_refuse_constant, parse_int=_bounded_int, object_pairs_hook=tuple)
_PAIRS_OF_SHORT = JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=tuple)
_LENIENT = JSONDecoder(parse_int=_any_int, object_pairs_hook=tuple)
_LENIENT_OF_SHORT = JSONDecoder(object_pairs_hook=tuple)


def document_pairs(body: bytes, *, lenient: bool = False) -> Pairs:
    """Return the keys and values of the object that is the whole of `body`, JSON whitespace around it aside.

    Objects within are Pairs too. `lenient` reads what else Python's reader can make sense of: numbers that
    are none, long integers (as None), bytes that are no UTF-8. Raises NumberError for such a number
    otherwise, ValueError when `body` is anything else, or nested deeper than MAX_DEPTH.
    """
    if too_deep(body, MAX_DEPTH):
        raise ValueError("nested too deep")
    long, short = (_LENIENT, _LENIENT_OF_SHORT) if lenient else (_PAIRS, _PAIRS_OF_SHORT)
    decoder = long if has_endless_digits(body) else short
    found = decoder.decode(body.decode("utf-8", "surrogateescape"))
    if not isinstance(found, tuple):
        raise ValueError("not a JSON object")
    return found


def check_data(body: bytes, pairs: Pairs) -> None:
    """Raise NumberError when a value of `data` in the document `body` has a number that is no finite double.

    `pairs` are what `document_pairs` reads in it.
    """
    numbers = [number for number, (key, _) in enumerate(pairs) if key == "data"]
    if not numbers or not may_be_too_big(body):
        return
    outline = Outline(body)
    values = b",".join(map(outline.value, numbers)).decode("utf-8", "surrogateescape")
    FINITE.decode(f"[{values}]")


def with_room(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function`; where the caller's stack is too deep for text within MAX_DEPTH, on a fresh stack."""
    try:
        return function(*arguments)
    except RecursionError:
        with ThreadPoolExecutor(max_workers=1) as fresh_stack:
            return fresh_stack.submit(function, *arguments).result()


def without_surrogates(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate, so that it can be a string of Arrow or Spark."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    points = np.array([text], "<U").view("<u4")
    return np.where(points >> 11 == 0xD800 >> 11, 0xFFFD, points).astype("<u4").tobytes().decode("utf-32-le")


def has_lone_surrogate(text: str) -> bool:
    """Return whether a string of the JSON `text` escapes half a surrogate pair, which no UTF-8 can hold."""
    return "\\u" in text and _LONE_SURROGATE.search(text.replace("\\\\", "__")) is not None


def without_surrogate_escapes(text: str) -> str:
    """Return the JSON `text` with an escape of U+FFFD for every escape of half a surrogate pair."""
    if "\\u" not in text:
        return text
    pieces, last = [], 0
    for lone in _LONE_SURROGATE.finditer(text.replace("\\\\", "__")):
        pieces += [text[last : lone.start()], "\\ufffd"]
        last = lone.end()
    return "".join([*pieces, text[last:]])


def is_utf8(text: bytes) -> bool:
    """Return whether `text` is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
