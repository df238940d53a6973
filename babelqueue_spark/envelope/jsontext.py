"""JSON as text: where the members of an object stand, and the limits of what is read.

Everything here is linear in the length of the text.
"""

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

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


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


def refuse_constant(name: str) -> Any:
    """A `parse_constant` hook that makes `NaN` and the infinities errors, as RFC 8259 has it."""
    raise ValueError(f"{name} is not JSON")


def bounded_int(literal: str) -> int:
    """A `parse_int` hook: the integer, or ValueError when it is longer than MAX_INT_DIGITS."""
    if len(literal) > MAX_INT_DIGITS and len(literal.lstrip("-")) > MAX_INT_DIGITS:
        raise ValueError("an integer is too long")
    return int(literal)


STRICT = JSONDecoder(parse_constant=refuse_constant, parse_int=bounded_int)


def members(
    text: str, *, start: int = 0, decoder: JSONDecoder = STRICT, data_decoder: JSONDecoder | None = None
) -> tuple[list[Member], int]:
    """The members of the object that opens at `start`, in order, repeated keys included, and its end.

    `data_decoder` reads the values of the key `data`. Raises ValueError when there is no such object.
    """
    if text[start : start + 1] != "{":
        raise ValueError("not a JSON object")
    found: list[Member] = []
    at = _skip_space(text, start + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise ValueError("a key is expected")
        key, colon = decoder.raw_decode(text, at)
        colon = _skip_space(text, colon)
        if text[colon : colon + 1] != ":":
            raise ValueError("a colon is expected")
        value_decoder = data_decoder if data_decoder is not None and key == "data" else decoder
        value_start = _skip_space(text, colon + 1)
        value, value_end = value_decoder.raw_decode(text, value_start)
        found.append(Member(key, value, at, value_start, value_end))
        follower = _skip_space(text, value_end)
        if text[follower : follower + 1] == "}":
            return found, follower + 1
        if text[follower : follower + 1] != ",":
            raise ValueError("a comma is expected")
        at = _skip_space(text, follower + 1)


def document_members(
    text: str, *, decoder: JSONDecoder = STRICT, data_decoder: JSONDecoder | None = None
) -> list[Member]:
    """The members of the object that is the whole of `text`, JSON whitespace around it aside.

    Raises ValueError when `text` is anything else, or nested deeper than MAX_DEPTH.
    """
    if too_deep(text):
        raise ValueError("nested too deep")
    start = _skip_space(text, 0)
    found, end = members(text, start=start, decoder=decoder, data_decoder=data_decoder)
    if _skip_space(text, end) != len(text):
        raise ValueError("text follows the object")
    return found


def with_room(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function`; where the caller's stack is too deep for text within MAX_DEPTH, on a fresh stack."""
    try:
        return function(*arguments)
    except RecursionError:
        with ThreadPoolExecutor(max_workers=1) as fresh_stack:
            return fresh_stack.submit(function, *arguments).result()


def too_deep(text: str) -> bool:
    """Whether arrays and objects are nested deeper than MAX_DEPTH in `text`."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        character = text[token.start()]
        if character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif character in "]}":
            depth -= 1
    return False


def without_surrogates(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate, so that it can be a string of Arrow or Spark."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start
