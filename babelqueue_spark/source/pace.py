"""How often an idle broker is looked at, and what PySpark 4.1 does not know of triggers."""

from __future__ import annotations

import time

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1 knows neither this trigger nor read limits in Python
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

__all__ = ["Pace", "SupportsTriggerAvailableNow"]

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two looks at an idle broker, whatever the trigger's pace."""


class Pace:
    """Looks at a broker: one after the other while there is something, then less and less often."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._next_look = 0.0

    def resting(self) -> bool:
        """Whether it is too early for another look."""
        return time.monotonic() < self._next_look

    def looked(self, *, idle: bool) -> None:
        """There was a look, which found nothing where it was `idle`."""
        self._pause = min(max(self._pause * 2, _SHORTEST_PAUSE), _LONGEST_PAUSE) if idle else 0.0
        self._next_look = time.monotonic() + self._pause
