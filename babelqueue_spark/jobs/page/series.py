"""A number over time, as a sparkline shows it."""

from collections import deque
from collections.abc import Callable
from time import monotonic

POINTS = 150
"""Most points that are kept: five minutes of polls each two seconds."""
_RATE_SECONDS = 10.0


class Series:
    """The last values of a number, and how fast it changes."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS)

    def add(self, value: float) -> None:
        """Append what the number is now."""
        self._points.append((self._clock(), value))

    @property
    def values(self) -> list[float]:
        """The values, oldest first."""
        return [value for _, value in self._points]

    @property
    def rate(self) -> float | None:
        """Change a second over the last ten seconds, or since the last value where that is older."""
        if len(self._points) < 2:
            return None
        *before, (now, value) = self._points
        recent = [point for point in before if now - point[0] <= _RATE_SECONDS]
        then, former = recent[0] if recent else before[-1]
        return (value - former) / max(now - then, 1e-9)
