"""What is claimed on one channel."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import pyarrow as pa


class ChannelClaims:
    """The deliveries that came on one channel and are not settled yet; with the channel they end.

    Attributes:
        channel: names the channel in receipts: tags mean nothing on another one.
    """

    def __init__(self) -> None:
        self.channel = uuid.uuid4().hex
        self._tags: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._tags)

    def hold(self, tags: Iterable[int]) -> None:
        self._tags.update(dict.fromkeys(tags))

    def drop(self, tags: Iterable[int]) -> None:
        for tag in tags:
            self._tags.pop(tag, None)

    def drop_all(self) -> None:
        """Forget all: they are back in their queues."""
        self._tags.clear()

    def tags_of(self, claimed: pa.RecordBatch) -> list[int | None]:
        """Return the tag of each of the `DELIVERIES`, None where it is held no more."""
        receipts = (receipt.decode().partition(":") for receipt in claimed.column("receipt").to_pylist())
        tags = (int(tag) if channel == self.channel else None for channel, _, tag in receipts)
        return [tag if tag in self._tags else None for tag in tags]

    def frames(self, tags: Sequence[int]) -> tuple[int | None, list[int]]:
        """Split tags so that few frames settle them: all up to a tag by one, the others one by one."""
        chosen = set(tags)
        kept = next((tag for tag in self._tags if tag not in chosen), None)
        leading = [tag for tag in tags if kept is None or tag < kept]
        return max(leading, default=None), [tag for tag in tags if kept is not None and tag > kept]
