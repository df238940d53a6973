"""Count what a worker did, in a batch and in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from babelqueue_spark.envelope import Reason
from babelqueue_spark.worker.outcomes import Outcome, WorkerReason

PUBLISHED = "published"
SCHEDULED = "scheduled"
"""The reason of what is published later, by a release of the schedule."""

OTHER = "other"
"""Stands for URNs, and for reasons of handlers, that are new when a total has `MOST_COUNTS` entries."""
MOST_COUNTS = 10_000
_REASONS = {None, *Reason, *WorkerReason, SCHEDULED}


@dataclass
class Counts:
    """Counters of messages, by outcome.

    Attributes:
        by: (URN, outcome, reason) → messages; the outcome `published` is for what handlers
            returned, with the reason `scheduled` for what waits for its time.
    """

    by: Counter[tuple[str | None, str, str | None]] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        """All messages that came."""
        return self.by.total() - self.published

    @property
    def acked(self) -> int:
        """Messages whose handler returned."""
        return self._of(Outcome.ACKED)

    @property
    def retried(self) -> int:
        """Messages that are retried."""
        return self._of(Outcome.RETRIED)

    @property
    def released(self) -> int:
        """Messages that went back as they were."""
        return self._of(Outcome.RELEASED)

    @property
    def dropped(self) -> int:
        """Messages that were dropped, duplicates among them."""
        return self._of(Outcome.DROPPED)

    @property
    def duplicates(self) -> int:
        """Messages that had been handled before."""
        return sum(
            count
            for (_, outcome, reason), count in self.by.items()
            if (outcome, reason) == (Outcome.DROPPED, WorkerReason.DUPLICATE)
        )

    @property
    def dead_lettered(self) -> int:
        """Messages that became dead letters."""
        return self._of(Outcome.DEAD_LETTERED)

    @property
    def published(self) -> int:
        """Messages that message handlers returned, those for the schedule among them."""
        return self._of(PUBLISHED)

    def add(self, rows: Iterable[Any]) -> None:
        """Count rows that have job, outcome, reason and messages."""
        for row in rows:
            self.by[row.job, row.outcome, row.reason] += row.messages

    def include(self, counts: Counts) -> None:
        """Add the counts of a batch; from `MOST_COUNTS` on, new URNs and reasons are counted as `OTHER`."""
        for key, messages in counts.by.items():
            if key not in self.by and len(self.by) >= MOST_COUNTS:
                urn, outcome, reason = key
                key = (urn and OTHER, outcome, reason if reason in _REASONS else OTHER)
            self.by[key] += messages

    def rows(self) -> list[tuple[str | None, str, str | None, int]]:
        """URN, outcome, reason and messages, sorted."""
        found = ((*key, count) for key, count in self.by.items())
        return sorted(found, key=lambda row: tuple(value or "" for value in row[:3]))

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name, and `by` as a list; of JSON's types."""
        names = (
            "read",
            "acked",
            "retried",
            "released",
            "dropped",
            "duplicates",
            "dead_lettered",
            "published",
        )
        by = [dict(zip(("job", "outcome", "reason", "messages"), row, strict=True)) for row in self.rows()]
        return {**{name: getattr(self, name) for name in names}, "by": by}

    def _of(self, wanted: str) -> int:
        return sum(count for (_, outcome, _), count in self.by.items() if outcome == wanted)
