"""Retry tiers: topics where messages wait, each for a time of its own, as the SDKs name them."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

DEFAULT_RETRY_TIERS_MS = (5_000, 30_000, 300_000, 1_800_000)
"""What the contract recommends."""

_TIER = re.compile(r"(?P<work>.+)\.retry\.(?P<number>[1-9][0-9]*)")


@dataclass(frozen=True)
class Tiers:
    """The delays of `<topic>.retry.1` and those after it.

    Attributes:
        delays: milliseconds, ascending; none where there are no tiers.
    """

    delays: tuple[int, ...] = ()

    def topic(self, work: str, delay: int) -> str:
        """Return the topic where a message waits for `delay`: the first tier that is long enough.

        `IndexError` where none is.
        """
        number = bisect_left(self.delays, delay) + 1
        _ = self.delays[number - 1]
        return f"{work}.retry.{number}"

    def after(self, attempts: int) -> int:
        """Return the delay before the next attempt: a tier further each time, up to the last."""
        return self.delays[min(attempts, len(self.delays) - 1)]

    def delay_of(self, topic: str) -> int:
        """Return how long messages wait in a topic: 0 where it is no tier."""
        found = _TIER.fullmatch(topic)
        number = int(found["number"]) if found else 0
        return self.delays[number - 1] if 0 < number <= len(self.delays) else 0

    def work_topic(self, topic: str) -> str:
        """Return the topic whose messages wait in a tier; any other is its own."""
        found = _TIER.fullmatch(topic)
        return found["work"] if found and self.delay_of(topic) else topic
