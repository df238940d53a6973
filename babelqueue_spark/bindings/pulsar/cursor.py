"""How far a subscription is with a topic, as the admin endpoint says it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulsar

_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")

Position = tuple[int, int]
"""Ledger and number of an entry."""


@dataclass(frozen=True)
class Cursor:
    """What of a topic, or of one partition, a subscription has acknowledged.

    Attributes:
        topic: whole name of the topic or partition.
        behind: everything up to here is acknowledged.
        last: the topic's last entry when it was asked for.
        acknowledged: ranges of further entries, each without its first and with its last one, in order.
    """

    topic: str
    behind: Position
    last: Position
    acknowledged: tuple[tuple[Position, Position], ...] = ()

    @classmethod
    def parse(cls, topic: str, stats: Mapping[str, Any], subscription: str) -> Cursor:
        """Out of a topic's internal statistics; `KeyError` where it has no such subscription."""
        found = stats["cursors"][subscription]
        ranges = (tuple(map(int, each)) for each in _RANGE.findall(found["individuallyDeletedMessages"]))
        return cls(
            topic,
            _position(found["markDeletePosition"]),
            _position(stats["lastConfirmedEntry"]),
            tuple(sorted(((ledger, after), (other, upto)) for ledger, after, other, upto in ranges)),
        )

    def start(self) -> pulsar.MessageId:
        """Return a reader that starts after this reads what is not acknowledged, and what was beyond that."""
        return pulsar.MessageId(-1, *self.behind, -1)

    def has_acknowledged(self, entry: Position) -> bool:
        """Return whether an entry is none of those that the subscription still has to give out."""
        following = bisect_left(self.acknowledged, entry, key=lambda each: each[1])
        beyond = following < len(self.acknowledged) and self.acknowledged[following][0] < entry
        return entry <= self.behind or beyond


def _position(text: str) -> Position:
    ledger, number = text.split(":")
    return int(ledger), int(number)
