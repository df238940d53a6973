"""What an `availableNow` query still has to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from babelqueue_spark.connector.source.plan import claims
from babelqueue_spark.journal import Journal


class Drain:
    """Counts down the backlog of the moment in which an `availableNow` query started.

    It ends when so many messages were claimed, or when a batch claimed none. It has no effect before `start`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._remaining: dict[str, int] | None = None
        self._planned: set[int] = set()

    @property
    def active(self) -> bool:
        """Return whether the query stops after a known number of messages."""
        return self._remaining is not None

    def start(self, backlog: Mapping[str, int]) -> None:
        """Stop after the messages (queue → count) that are there now."""
        self._remaining = dict(backlog)

    def capped(self, backlog: Mapping[str, int]) -> Mapping[str, int]:
        """Return the backlog (queue → count), less what came after `start`."""
        if self._remaining is None:
            return backlog
        return {queue: min(count, self._remaining[queue]) for queue, count in backlog.items()}

    def planned(self, batch: int) -> None:
        """Note that this query planned a batch, which will count; one that it replays does not."""
        self._planned.add(batch)

    def finished(self, plan: Mapping[str, Any]) -> None:
        """Subtract what a finished batch has really claimed."""
        if self._remaining is None or plan["batch"] not in self._planned:
            return
        self._planned.discard(plan["batch"])
        claimed = self._claimed(plan)
        if not claimed.total():
            self._remaining.update({read["queue"]: 0 for read in plan["reads"]})
        self._remaining = {queue: max(0, left - claimed[queue]) for queue, left in self._remaining.items()}

    def _claimed(self, plan: Mapping[str, Any]) -> Counter[str]:
        claimed: Counter[str] = Counter()
        for claim in claims(plan, committed=0):
            record = self._journal.segment(claim.batch, claim.index).ack_record()
            counts = record.claimed if record is not None else []
            for share, count in zip(claim.shares, counts, strict=False):
                claimed[share.queue] += count
        return claimed
