"""Offsets in the partitions of logs, and what Spark does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Partitions = Mapping[int, int]
"""Partition → offset."""


@dataclass(frozen=True)
class PartitionOffsets:
    """Queue → partition → offset of the first message that was not read. Never changed once made."""

    queues: Mapping[str, Partitions]

    def partitions(self, queue: str) -> Partitions:
        return self.queues.get(queue, {})

    def sizes_to(self, end: PartitionOffsets) -> dict[str, int]:
        """Count the messages (and gaps) up to `end` in each of its queues; unknown partitions begin at 0."""
        return {
            queue: sum(
                max(0, last - self.partitions(queue).get(number, 0)) for number, last in partitions.items()
            )
            for queue, partitions in end.queues.items()
        }

    def size_to(self, end: PartitionOffsets) -> int:
        return sum(self.sizes_to(end).values())

    def limited(self, start: PartitionOffsets, messages: int) -> PartitionOffsets:
        """Apply a rate limit: at most `messages` after `start`, each partition in proportion.

        Each partition with messages gives one at least, so that many partitions may exceed the limit.
        """
        total = start.size_to(self)
        if total <= messages:
            return self

        def nearer(queue: str, number: int, last: int) -> int:
            first = start.partitions(queue).get(number, 0)
            if last <= first:
                return last
            return first + min(last - first, max(1, messages * (last - first) // total))

        return self._mapped(nearer)

    def capped_at(self, bound: PartitionOffsets) -> PartitionOffsets:
        """Take the smaller offset of the two; drop queues and partitions that the bound lacks."""
        return PartitionOffsets(
            {
                queue: {
                    number: min(offset, bound.queues[queue][number])
                    for number, offset in partitions.items()
                    if number in bound.queues[queue]
                }
                for queue, partitions in self.queues.items()
                if queue in bound.queues
            }
        )

    def at_least(self, known: PartitionOffsets) -> PartitionOffsets:
        """Take the larger offset of the two, for the queues and partitions in `known`."""
        return known._mapped(lambda queue, number, offset: max(offset, self.partitions(queue).get(number, 0)))

    def queues_behind(self, end: PartitionOffsets) -> list[str]:
        """Name the queues in which `end` has partitions that are missing here."""
        return [queue for queue, found in end.queues.items() if found.keys() - self.partitions(queue).keys()]

    def with_missing(self, others: PartitionOffsets) -> PartitionOffsets:
        """Add the queues and partitions that are missing here."""
        added = {
            queue: {**partitions, **self.partitions(queue)} for queue, partitions in others.queues.items()
        }
        return PartitionOffsets({**self.queues, **added})

    def to_json(self) -> dict[str, dict[str, int]]:
        return {
            queue: {str(number): offset for number, offset in partitions.items()}
            for queue, partitions in self.queues.items()
        }

    @classmethod
    def from_json(cls, texts: Mapping[str, Mapping[str, Any]]) -> PartitionOffsets:
        return cls(
            {
                queue: {int(number): offset for number, offset in partitions.items()}
                for queue, partitions in texts.items()
            }
        )

    def _mapped(self, offset_of: Callable[[str, int, int], int]) -> PartitionOffsets:
        return PartitionOffsets(
            {
                queue: {number: offset_of(queue, number, offset) for number, offset in partitions.items()}
                for queue, partitions in self.queues.items()
            }
        )
