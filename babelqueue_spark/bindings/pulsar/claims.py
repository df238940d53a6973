"""What consumers have claimed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from babelqueue_spark.bindings.pulsar.messages import EntryId, Part, Unit


class ClaimRepeatedError(Exception):
    """The broker gave a claim out again: the client had lost the connection, and opened it by itself."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the connection was lost and made again, and {what}")


class Claims:
    """The claims of a binding's consumers, and which messages of a producer's batch are acknowledged.

    A consumer is named by its `holder`. When it is closed, its claims end.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[EntryId, set[int]]] = defaultdict(dict)
        self._ended: set[str] = set()
        self._acknowledged: dict[bytes, set[int]] = {}

    def hold(self, holder: str, units: Iterable[Unit]) -> None:
        self._held[holder].update((unit.entry, {held.position for held in unit.messages}) for unit in units)

    def holds(self, holder: str, entry: EntryId) -> bool:
        return entry in self._held[holder]

    def holds_any(self, holder: str) -> bool:
        return bool(self._held[holder])

    def complete(self, parts: Mapping[bytes, Part]) -> set[bytes]:
        """Claims of which all messages are acknowledged, with these; none that ended."""
        return {text for text, part in parts.items() if self._is_complete(text, part)}

    def acknowledge(self, parts: Mapping[bytes, Part], complete: Set[bytes]) -> None:
        """Note messages as acknowledged; the broker knows of those that are `complete`."""
        for text, part in parts.items():
            if text in complete:
                self._acknowledged.pop(text, None)
            elif places := self._places(text, part):
                self._acknowledged[text] = places
        self.drop(parts.values())

    def is_acknowledged(self, text: bytes, place: int | None = None) -> bool:
        """Return whether a message of a claim is acknowledged, or any of them; the claim is not complete."""
        places = self._acknowledged.get(text, set())
        return bool(places) if place is None else place in places

    def drop(self, parts: Iterable[Part]) -> None:
        for claim, places in parts:
            held = self._held.get(claim.holder, {})
            if left := held.get(claim.entry):
                left.difference_update(places)
                if not left:
                    del held[claim.entry]

    def end(self, holder: str) -> None:
        """Note that a consumer was closed: what it did not acknowledge is claimed no more."""
        self._ended.add(holder)
        self._held.pop(holder, None)
        for text in [text for text in self._acknowledged if text.startswith(holder.encode())]:
            del self._acknowledged[text]

    def has_ended(self, holder: str) -> bool:
        return holder in self._ended

    def _is_complete(self, text: bytes, part: Part) -> bool:
        if part.claim.total == 1:
            return part.claim.holder not in self._ended
        return len(self._places(text, part)) >= part.claim.total

    def _places(self, text: bytes, part: Part) -> set[int]:
        """Return the places of a claim that are acknowledged now or were before; none where it ended."""
        if part.claim.holder in self._ended:
            return set()
        return self._acknowledged.get(text, set()).union(part.places)
