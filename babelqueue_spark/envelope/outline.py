"""Where the members of a JSON object stand in its text, found over the whole text at once.

A step of Python for each bracket or member would make a text of many small ones slow. Everything here is
linear in the length of the text.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SPACES = re.compile(rb"[ \t\n\r]*+")
_WHITESPACE = b" \t\n\r"
_STRUCTURAL = np.isin(np.arange(256), [*b'{}[],:"'])
_STEPS = np.zeros(256, np.int8)
_STEPS[[*b"{["]], _STEPS[[*b"}]"]] = 1, -1

Places = NDArray[np.intp]


class Span(NamedTuple):
    """Where one `"key": value` stands in the text of an object."""

    at: int
    """index of the key's opening quote"""
    start: int
    """index of the value's first byte"""
    end: int
    """index behind the value's last byte"""


class Outline:
    """Where the members of one object stand, found for the whole text at once."""

    def __init__(self, text: bytes) -> None:
        """`text` is one valid JSON object in bytes of UTF-8 or nearly, JSON whitespace around it aside."""
        self._text = text
        places, kinds, depths = _structure(text)
        places, kinds = places[depths <= 1], kinds[depths <= 1]
        self._colons: list[int] = places[kinds == ord(":")].tolist()
        #: What stands in front of each member, and behind the last one.
        self._marks: list[int] = [
            *places[(kinds == ord(",")) | (kinds == ord("{"))].tolist(),
            int(places[-1]),
        ]

    def span(self, number: int) -> Span:
        """Return where the member of this number stands, counted from 0, repeated keys included."""
        at = self._behind_spaces(self._marks[number] + 1)
        start = self._behind_spaces(self._colons[number] + 1)
        end = start + len(self._text[start : self._marks[number + 1]].rstrip(_WHITESPACE))
        return Span(at, start, end)

    def value(self, number: int) -> bytes:
        return self._text[self._colons[number] + 1 : self._marks[number + 1]].strip(_WHITESPACE)

    def comma(self, number: int) -> int:
        """Return the index of the comma in front of the member of this number, which is not the first one."""
        return self._marks[number]

    def _behind_spaces(self, place: int) -> int:
        if self._text[place] in _WHITESPACE:
            place = _SPACES.match(self._text, place).end()  # type: ignore[union-attr]  # none match too
        return place


def too_deep(text: bytes, limit: int) -> bool:
    """Return whether arrays and objects are nested deeper than `limit` in the JSON `text`.

    In a text that is no JSON, what follows the first error may count or not.
    """
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    _, _, depths = _structure(text)
    return bool((depths > limit).any())


def _structure(text: bytes) -> tuple[Places, NDArray[np.uint8], NDArray[np.int32]]:
    """Brackets, commas and colons outside strings: their places, what they are, and the depth behind them."""
    if b"\\" in text:
        text = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    octets = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(_STRUCTURAL[octets])
    kinds = octets[places]
    quotes = kinds == ord('"')
    outside = ~(quotes | np.logical_xor.accumulate(quotes))
    places, kinds = places[outside], kinds[outside]
    return places, kinds, np.cumsum(_STEPS[kinds], dtype=np.int32)
