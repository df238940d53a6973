"""JSON as text: where the members of an object stand, and the limits of what is read.

Everything here is linear in the length of the text.
"""

import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from json import JSONDecoder
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

#: Deepest nesting of arrays and objects that is read, the root included. The published Python SDK gives
#: up between 900 and 1000, wherever its caller's stack leaves it; a fixed number gives a replay the same
#: verdict as the first read.
MAX_DEPTH = 900
#: Longest integer literal that is read (CPython's own limit for text to int).
MAX_INT_DIGITS = 4300
JSON_WHITESPACE = " \t\n\r"

_KEY = re.compile(
    r'[ \t\n\r]*+("(?:[^"\\\x00-\x1f]++|\\.)*+")[ \t\n\r]*+:[ \t\n\r]*+',
)
_FOLLOWING = re.compile(r"[ \t\n\r]*+([,}])")
_CLOSING = re.compile(r"[ \t\n\r]*+\}")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>\\u[dD][89a-fA-F])|\\.", re.DOTALL
)

#: Fewer digits than these are an integer within a double's range.
_DOUBLE_DIGITS = 300


class Member(NamedTuple):
    """One `"key": value` of an object: the parsed key and value, and where they stand in the text."""

    key: str
    value: Any
    at: int
    """index of the key's opening quote"""
    start: int
    """index of the value's first character"""
    end: int
    """index behind the value's last character"""


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
#: with no key twice in an object (what we write); and whatever Python's reader can make sense of.
STRICT = JSONDecoder(parse_constant=_refuse_constant, parse_int=_bounded_int)
FINITE = JSONDecoder(parse_constant=_refuse_constant, parse_int=_finite_int, parse_float=_finite_float)
DISTINCT = JSONDecoder(
    parse_constant=_refuse_constant,
    parse_int=_finite_int,
    parse_float=_finite_float,
    object_pairs_hook=_distinct,
)
LENIENT = JSONDecoder(parse_int=_any_int)


def members(
    text: str, *, start: int = 0, decoder: JSONDecoder = STRICT, data_decoder: JSONDecoder | None = None
) -> tuple[list[Member], int]:
    """The members of the object that opens at `start`, in order, repeated keys included, and its end.

    `data_decoder` reads the values of the key `data`. Raises ValueError when there is no such object.
    """
    if not text.startswith("{", start):
        raise ValueError("not a JSON object")
    found: list[Member] = []
    closing = _CLOSING.match(text, start + 1)
    if closing:
        return found, closing.end()
    end = start + 1
    while True:
        opening = _KEY.match(text, end)
        if opening is None:
            raise ValueError("a key is expected")
        literal = opening[1]
        key: str = decoder.decode(literal) if "\\" in literal else literal[1:-1]
        value_decoder = data_decoder if data_decoder is not None and key == "data" else decoder
        value, value_end = value_decoder.raw_decode(text, opening.end())
        found.append(Member(key, value, opening.start(1), opening.end(), value_end))
        following = _FOLLOWING.match(text, value_end)
        if following is None:
            raise ValueError("a comma or a brace is expected")
        end = following.end()
        if following[1] == "}":
            return found, end


def document_members(
    text: str, *, decoder: JSONDecoder = STRICT, data_decoder: JSONDecoder | None = None
) -> list[Member]:
    """The members of the object that is the whole of `text`, JSON whitespace around it aside.

    Raises ValueError when `text` is anything else, or nested deeper than MAX_DEPTH.
    """
    if too_deep(text):
        raise ValueError("nested too deep")
    start = len(text) - len(text.lstrip(JSON_WHITESPACE))
    found, end = members(text, start=start, decoder=decoder, data_decoder=data_decoder)
    if text[end:].strip(JSON_WHITESPACE):
        raise ValueError("text follows the object")
    return found


def with_room(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function`; where the caller's stack is too deep for text within MAX_DEPTH, on a fresh stack."""
    try:
        return function(*arguments)
    except RecursionError:
        with ThreadPoolExecutor(max_workers=1) as fresh_stack:
            return fresh_stack.submit(function, *arguments).result()


def too_deep(text: str, limit: int = MAX_DEPTH) -> bool:
    """Whether arrays and objects are nested deeper than `limit` in `text`."""
    if text.count("[") + text.count("{") <= limit:
        return False
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        character = text[token.start()]
        if character in "[{":
            depth += 1
            if depth > limit:
                return True
        elif character in "]}":
            depth -= 1
    return False


def without_surrogates(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate, so that it can be a string of Arrow or Spark."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def has_lone_surrogate(text: str) -> bool:
    """Whether a string of the JSON `text` escapes half a surrogate pair, which no UTF-8 can hold."""
    return "\\u" in text and any(escape.lastgroup == "lone" for escape in _ESCAPE.finditer(text))


def is_utf8(text: bytes) -> bool:
    """Whether `text` is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
