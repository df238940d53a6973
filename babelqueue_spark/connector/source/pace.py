"""How often an idle broker is polled."""

from __future__ import annotations

import time

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two polls of an idle broker, at any trigger interval."""


class Pace:
    """Spaces polls of a broker: none is delayed while there are messages, then pauses grow."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._next_poll = 0.0

    def resting(self) -> bool:
        return time.monotonic() < self._next_poll

    def polled(self, *, idle: bool) -> None:
        """Note a poll, which found nothing if it was `idle`."""
        self._pause = min(max(self._pause * 2, _SHORTEST_PAUSE), _LONGEST_PAUSE) if idle else 0.0
        self._next_poll = time.monotonic() + self._pause
