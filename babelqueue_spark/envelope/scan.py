"""Scan many JSON texts at once for what needs a parser.

Each function may name more rows than it has to, never fewer. Everything here is linear in the length of the
texts, and looks at their bytes in windows that stay in the processor's cache.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

#: An exponent of as many digits may put a number out of a double's range; one of far more digits does.
_LONG_EXPONENT, _ENDLESS_EXPONENT = 3, 16
_EXPONENT = re.compile(rb"[eE]\+?[0-9]{%d}" % _LONG_EXPONENT)
_ENDS_NUMBER = np.isin(np.arange(256), [*b",]} \t\r\n"])
#: A number out of range without such an exponent has over 200 digits in a row; of those every _STRIDE-th
#: byte gives at least eight.
_STRIDE = 24
_WINDOW = 1 << 17
_RARE = 8
"""What stands at fewer than one in so many bytes, as a power of two, is rare."""
SLICE_ROWS = 8192
_SLICE_BYTES = 1 << 21
_DIGITS_IN_A_ROW = b"0" * 8
_ENDLESS_DIGITS = b"0" * 200
_DIGITS_TO_ZERO = bytes(ord("0") if byte in b"0123456789" else 1 for byte in range(256))

# glibc gives a freed block of the size of a slice's arrays back to the system at once, and the next one's
# pages are faulted in anew: a fifth of the time. A larger block, once freed, raises the size that it keeps.
np.empty(8 * _SLICE_BYTES, np.uint8)

_skim = msgspec.json.Decoder(msgspec.Raw).decode
_NO_VALUE = (msgspec.DecodeError, RecursionError)


def octets_of(texts: Any) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return all bytes behind the string or binary array `texts`, and the bounds of its texts there."""
    _, offsets, values = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
    return np.frombuffer(values or b"", np.uint8), bounds


def cut(texts: Any, begins: NDArray[Any]) -> Any:
    """Return the bytes behind `texts` cut into a binary array: each piece ends where the next one begins.

    `begins` are ascending places in those bytes, the last of them the end.
    """
    offsets = pa.py_buffer(begins.astype(np.int32, copy=False))
    return pa.Array.from_buffers(pa.binary(), max(len(begins) - 1, 0), [None, offsets, texts.buffers()[2]])


def slices(texts: Any) -> Iterator[tuple[int, Any]]:
    """Yield the binary array `texts` in parts that stay in the processor's cache, each with its first row."""
    _, bounds = octets_of(texts)
    start = 0
    while start < len(texts):
        end = min(max(_rows_within(bounds, start, _SLICE_BYTES), start + 1), start + SLICE_ROWS)
        yield start, texts.slice(start, end - start)
        start = end


def beyond_limits(texts: Any, limit: int) -> list[int]:
    """Return the rows of `texts`, a binary array, each beginning as an object, that may be beyond the limits.

    Those are finite numbers only, and a nesting no deeper than `limit`.
    """
    return sorted({*too_big_rows(texts), *_deep_rows(texts, limit)})


def may_repeat_keys(texts: Any) -> list[int]:
    """Return the rows of the binary array `texts`, JSON values each, in which an object may have a key twice.

    Those with an escape or a space behind a quote; those of which two keys are equal, in whatever objects.
    """
    octets, bounds = octets_of(texts)
    part = octets[bounds[0] : bounds[-1]]
    quotes = places(part, lambda window: window == ord('"'), reach=0) + bounds[0]
    following = octets.take(quotes + 1, mode="clip")
    escapes = places(part, lambda window: window == ord("\\"), reach=0) + bounds[0]
    odd = np.concatenate([escapes, quotes[following <= ord(" ")]])
    rows = np.searchsorted(bounds, odd, side="right") - 1
    closing = np.flatnonzero(following[1:] == ord(":")) + 1  # the first quote opens
    begins, ends = quotes[closing - 1] + 1, quotes[closing] + 1
    pieces = cut(texts, np.append(np.stack([begins, ends], axis=1).ravel(), ends[-1:]))
    keys = pieces.take(pa.array(np.arange(0, len(pieces), 2)))
    return sorted({*rows.tolist(), *_rows_with_equal(keys, np.searchsorted(ends, bounds, side="right"))})


def _rows_with_equal(keys: Any, bounds: NDArray[np.intp]) -> Iterator[int]:
    """Find the rows, each a slice of `keys` between two bounds, with equal keys. Keys end with a quote."""
    _, offsets, values = keys.buffers()
    row_bounds = pa.py_buffer(np.frombuffer(offsets, np.int32)[bounds])
    rows = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, row_bounds, values])
    encoded = rows.dictionary_encode()
    repeats = [_has_equal(row.split(b'"')) for row in encoded.dictionary.to_pylist()]
    yield from np.flatnonzero(np.array(repeats, np.bool_)[encoded.indices.to_numpy()]).tolist()


def _has_equal(keys: list[bytes]) -> bool:
    return len({*keys}) < len(keys)


def no_values(texts: Any) -> list[int]:
    """Return the rows of `texts`, a binary array, that are not one JSON value."""
    found = raws_of(texts)
    try:
        deque(map(_skim, found), maxlen=0)
    except _NO_VALUE:
        return [row for row, text in enumerate(found) if not is_value(text)]
    return []


def is_value(text: Any) -> bool:
    """Return whether a text is one JSON value, as far as msgspec sees without reading it."""
    try:
        _skim(text)
    except _NO_VALUE:
        return False
    return True


def raws_of(texts: Any) -> list[Any]:
    """Return the texts of a string or binary array as bytes, or None."""
    raws: list[Any] = texts.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return raws


def _deep_rows(texts: Any, limit: int) -> Iterator[int]:
    """Yield the rows that have brackets enough to be nested deeper than `limit`."""
    octets, bounds = octets_of(texts)
    long, start = np.flatnonzero(np.diff(bounds) > limit), 0
    while start < len(long):
        within = _rows_within(bounds, long[start], _WINDOW)
        end = max(int(np.searchsorted(long, within)), start + 1)
        if _brackets(octets[bounds[long[start]] : bounds[long[end - 1] + 1]]) > limit:
            rows = long[start:end].tolist()
            yield from (row for row in rows if _brackets(octets[bounds[row] : bounds[row + 1]]) > limit)
        start = end


def _rows_within(bounds: NDArray[np.int32], start: int, size: int) -> int:
    """Return the end of the rows from `start` on that have so many bytes together."""
    return int(np.searchsorted(bounds, int(bounds[start]) + size, side="right")) - 1


def _brackets(octets: NDArray[np.uint8]) -> int:
    """Count the `{` and `[`."""
    return int(np.count_nonzero((octets | 0x20) == ord("{")))


def too_big_rows(texts: Any) -> set[int]:
    """Return the rows of `texts`, as for `beyond_limits`, that may have a number that is no finite double."""
    octets, bounds = octets_of(texts)
    found = too_big_numbers(octets[bounds[0] : bounds[-1]])
    rows: list[int] = (np.searchsorted(bounds - bounds[0], found, side="right") - 1).tolist()
    return {*rows}


def too_big_numbers(octets: NDArray[np.uint8]) -> list[int]:
    """Return where in the text of JSON objects a number stands, or may stand, that is no finite double."""
    return [*_long_exponents(octets), *_endless_digits(octets)]


def has_endless_digits(text: bytes) -> bool:
    """Return whether there may be more digits in a row in `text` than a finite double needs."""
    return _ENDLESS_DIGITS in text.translate(_DIGITS_TO_ZERO)


def may_be_too_big(text: bytes) -> bool:
    """Return whether `text` may have a number that is no finite double."""
    return _EXPONENT.search(text) is not None or has_endless_digits(text)


def _long_exponents(octets: NDArray[np.uint8]) -> Iterator[int]:
    """Yield where the digits of long exponents without a minus begin.

    In a string, such digits would hardly be followed by what ends a number.
    """
    letters = places(octets, _may_be_exponents, reach=2) + 1
    begins = letters + 1 + (octets[letters + 1] == ord("+"))
    for place in range(_LONG_EXPONENT):
        begins = begins[octets.take(begins + place, mode="clip") - np.uint8(ord("0")) <= 9]
    ends = begins + _LONG_EXPONENT
    for _ in range(_ENDLESS_EXPONENT - _LONG_EXPONENT):
        following = octets.take(ends, mode="clip")
        yield from begins[_ENDS_NUMBER[following]].tolist()
        goes_on = following - np.uint8(ord("0")) <= 9
        begins, ends = begins[goes_on], ends[goes_on] + 1
    yield from begins.tolist()


def _may_be_exponents(octets: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return where a digit stands before the letter of what may be an exponent without a minus."""
    found: NDArray[np.bool_] = octets[:-2] - np.uint8(ord("0")) <= 9
    found &= (octets[1:-1] | 0x20) == ord("e")
    found &= octets[2:] - np.uint8(ord("+")) <= ord("9") - ord("+")
    return found


def places(
    octets: NDArray[np.uint8], matches: Callable[[NDArray[np.uint8]], NDArray[np.bool_]], reach: int
) -> NDArray[np.intp]:
    """Return where something stands in `octets`, looked for in windows that stay in the processor's cache.

    `matches` tells, for all octets of a window but the last `reach`, whether it stands there; it looks at
    that octet and at `reach` more.
    """
    windows = range(0, max(len(octets) - reach, 0), _WINDOW)
    found = [start + _true_places(matches(octets[start : start + _WINDOW + reach])) for start in windows]
    return np.concatenate(found) if found else np.empty(0, np.intp)


def _true_places(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return where a mask is true. Where that is rare, a search of bytes finds it many times faster."""
    count = np.count_nonzero(mask)
    if count > len(mask) >> _RARE:
        return np.flatnonzero(mask)
    octets, found, place = mask.tobytes(), np.empty(count, np.intp), -1
    for number in range(count):
        place = octets.find(1, place + 1)
        found[number] = place
    return found


def _endless_digits(octets: NDArray[np.uint8]) -> Iterator[int]:
    """Yield where there are more digits in a row than a finite double needs."""
    sample = octets[::_STRIDE].tobytes().translate(_DIGITS_TO_ZERO)
    first = sample.find(_DIGITS_IN_A_ROW)
    while first >= 0:
        begin = first * _STRIDE
        if octets[begin : begin + (len(_DIGITS_IN_A_ROW) - 1) * _STRIDE].tobytes().isdigit():
            yield begin
        first = sample.find(_DIGITS_IN_A_ROW, first + 1)
