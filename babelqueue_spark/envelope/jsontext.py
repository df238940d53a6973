"""JSON as text: where the members of an object stand, and the limits of what is read.

Everything here is linear in the length of the text.
"""

import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from json import JSONDecoder
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

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

#: An exponent of as many digits may put a number out of a double's range; one of far more digits does.
_LONG_EXPONENT, _ENDLESS_EXPONENT = 3, 16
_ENDS_NUMBER = np.isin(np.arange(256), [*b",]} \t\r\n"])
#: Fewer digits than these are an integer within a double's range.
_DOUBLE_DIGITS = 300
#: A number out of range without such an exponent has over 200 digits in a row; of those every _STRIDE-th
#: byte gives at least eight.
_STRIDE = 24
_WINDOW = 1 << 16
_DIGITS_IN_A_ROW = b"0" * 8
_DIGITS_TO_ZERO = bytes(ord("0") if byte in b"0123456789" else 1 for byte in range(256))

_skim_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_skim = msgspec.json.Decoder(msgspec.Raw).decode


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
    return any(escape.lastgroup == "lone" for escape in _ESCAPE.finditer(text))


def is_utf8(text: bytes) -> bool:
    """Whether `text` is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def suspects(texts: Any, limit: int) -> list[int]:
    """The rows of the binary array `texts` that a quick look does not prove to be sound.

    Sound is one JSON value, of finite numbers only, nested no deeper than `limit`.
    """
    joined, lengths = _joined(texts)
    rows = {*deep_rows(texts, limit), *_rows_at(too_big_numbers(joined), lengths)}
    if not _are_values(joined, lengths):
        rows.update(row for row, text in enumerate(texts.to_pylist()) if not _is_value(text))
    return sorted(rows)


def may_repeat_keys(texts: Any) -> list[int]:
    """The rows of the binary array `texts`, JSON values each, in which an object may have a key twice.

    Those with an escape or a space behind a quote; those of which two keys are equal, in whatever objects.
    """
    _, offsets, values = texts.buffers()
    octets = np.frombuffer(values or b"", np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
    part = octets[bounds[0] : bounds[-1]]
    quotes = places(part, lambda window: window == ord('"'), reach=0) + bounds[0]
    following = octets.take(quotes + 1, mode="clip")
    escapes = places(part, lambda window: window == ord("\\"), reach=0) + bounds[0]
    odd = np.concatenate([escapes, quotes[following <= ord(" ")]])
    closing = np.flatnonzero(following[1:] == ord(":")) + 1  # the first quote opens
    begins, ends = quotes[closing - 1] + 1, quotes[closing]
    bounds_of_pieces = np.append(np.stack([begins, ends], axis=1), ends[-1:]).astype(np.int32)
    pieces = pa.Array.from_buffers(pa.binary(), 2 * len(ends), [None, pa.py_buffer(bounds_of_pieces), values])
    keys = pieces.take(pa.array(np.arange(0, 2 * len(ends), 2)))
    rows = np.searchsorted(bounds, odd, side="right") - 1
    return sorted({*rows.tolist(), *_rows_with_equal(keys, np.searchsorted(ends, bounds))})


def _rows_with_equal(keys: Any, bounds: NDArray[np.intp]) -> Iterator[int]:
    """The rows, each a slice of `keys` between two bounds, that have equal keys."""
    codes = keys.dictionary_encode().indices
    row_bounds = pa.py_buffer((4 * bounds).astype(np.int32))
    shapes = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, row_bounds, codes.buffers()[1]])
    encoded = shapes.dictionary_encode()
    repeats = [len({*codes}) < len(codes) for codes in map(_codes, encoded.dictionary.to_pylist())]
    yield from np.flatnonzero(np.array(repeats, np.bool_)[encoded.indices.to_numpy()]).tolist()


def _codes(shape: bytes) -> list[int]:
    codes: list[int] = np.frombuffer(shape, np.int32).tolist()
    return codes


def too_big_rows(texts: Any) -> set[int]:
    """The rows of the binary array `texts` that may have a number that is no finite double."""
    joined, lengths = _joined(texts)
    return {*_rows_at(too_big_numbers(joined), lengths)}


def _joined(texts: Any) -> tuple[bytes, NDArray[np.int32]]:
    """The texts with commas between, and their lengths."""
    [joined] = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), b",").to_pylist()
    return joined, pc.binary_length(texts).to_numpy()


def _rows_at(places: list[int], lengths: NDArray[np.int32]) -> list[int]:
    """The rows that these places of the joined text belong to."""
    rows: list[int] = np.searchsorted(np.cumsum(lengths + 1), places, side="right").tolist()
    return rows


def _are_values(joined: bytes, lengths: NDArray[np.int32]) -> bool:
    """Whether texts of these lengths, `joined` with commas, are surely a JSON value each."""
    try:
        values = _skim_list(b"[%b]" % joined)
    except (msgspec.DecodeError, RecursionError):
        return False
    return [*map(len, values)] == [*lengths.tolist()]


def _is_value(text: bytes) -> bool:
    try:
        _skim(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def too_big_numbers(text: bytes) -> list[int]:
    """Where in `text`, JSON values end to end, a number stands, or may stand, that is no finite double."""
    return [*_long_exponents(np.frombuffer(text, np.uint8)), *_endless_digits(text)]


def _long_exponents(octets: NDArray[np.uint8]) -> Iterator[int]:
    """Where the digits of long exponents without a minus begin.

    In a string, such digits would hardly be followed by what ends a number.
    """
    letters = places(octets, _may_be_exponents, reach=_LONG_EXPONENT + 1)
    begins = letters + 1 + (octets[letters + 1] == ord("+"))
    ends = begins + _LONG_EXPONENT
    for _ in range(_ENDLESS_EXPONENT - _LONG_EXPONENT):
        following = octets.take(ends, mode="clip")
        yield from begins[_ENDS_NUMBER[following]].tolist()
        goes_on = following - np.uint8(ord("0")) <= 9
        begins, ends = begins[goes_on], ends[goes_on] + 1
    yield from begins.tolist()


def _may_be_exponents(octets: NDArray[np.uint8]) -> NDArray[np.bool_]:
    digit = octets - np.uint8(ord("0")) <= 9
    three = digit[1:-2] & digit[2:-1] & digit[3:]
    letter = (octets[:-4] | 0x20) == ord("e")
    found: NDArray[np.bool_] = letter & (three[:-1] | ((octets[1:-3] == ord("+")) & three[1:]))
    return found


def places(
    octets: NDArray[np.uint8], matches: Callable[[NDArray[np.uint8]], NDArray[np.bool_]], reach: int
) -> NDArray[np.intp]:
    """Where something stands in `octets`, looked for in windows that stay in the processor's cache.

    `matches` tells, for all octets of a window but the last `reach`, whether it stands there; it looks at
    that octet and at `reach` more.
    """
    windows = range(0, max(len(octets) - reach, 0), _WINDOW)
    found = [start + np.flatnonzero(matches(octets[start : start + _WINDOW + reach])) for start in windows]
    return np.concatenate(found) if found else np.empty(0, np.intp)


def _endless_digits(text: bytes) -> Iterator[int]:
    """Where there are more digits in a row than a finite double needs."""
    sample = text[::_STRIDE].translate(_DIGITS_TO_ZERO)
    first = sample.find(_DIGITS_IN_A_ROW)
    while first >= 0:
        if text[first * _STRIDE : (first + len(_DIGITS_IN_A_ROW) - 1) * _STRIDE].isdigit():
            yield first * _STRIDE
        first = sample.find(_DIGITS_IN_A_ROW, first + 1)


def may_be_deep(text: bytes, limit: int = MAX_DEPTH) -> bool:
    """Whether `text` has brackets enough to be nested deeper than `limit`."""
    return len(text) > limit and text.count(b"[") + text.count(b"{") > limit


def deep_rows(texts: Any, limit: int = MAX_DEPTH) -> list[int]:
    """The rows of the binary array `texts` that may be nested deeper than `limit`."""
    long = pc.indices_nonzero(pc.greater(pc.binary_length(texts), 2 * limit))
    return [row for row in long.to_pylist() if may_be_deep(texts[row].as_py(), limit)]
