"""What a channel holds, and what a consumer on it has received."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pika
import pyarrow as pa
from pika.channel import Channel

from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.rabbitmq.messages import Message, message, received


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


class DeliveryBuffer:
    """Messages in the order in which they came.

    The connection's thread calls `receive` and `end`, the caller's thread all the rest.

    Attributes:
        claims: those of the channel on which the messages come.
        messages: what came; it only grows.
        size: bytes of their bodies.
        cancelled: nothing more will come.
    """

    def __init__(self, claims: ChannelClaims, *, native: bool = False) -> None:
        self.claims = claims
        self._native = native
        self.messages: list[Message] = []
        self.size = 0
        self.cancelled = False
        self._error: BaseException | None = None
        self._wanted = 0
        self._max_bytes = 0
        self._woken = threading.Event()
        self._batches: list[pa.RecordBatch] = []
        self._converted = 0

    def wait(self, wanted: int, max_bytes: int, quiet: float, until: float) -> None:
        """Return when there is that much, or nothing arrived for `quiet` seconds, or nothing will.

        At `until`, of the monotonic clock, it returns in any case. What came is made into deliveries
        meanwhile, while the server sends more.
        """
        self._wanted, self._max_bytes = wanted, max_bytes
        seen = -1
        while seen != len(self.messages) and not self._complete() and time.monotonic() < until:
            seen = len(self.messages)
            self._convert()
            self._woken.clear()
            if not self._complete():
                self._woken.wait(quiet)
        if self._error:
            raise self._error

    def receive(self, _: Channel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.messages.append(message(method, properties, body, native=self._native))
        self.size += len(body)
        if self._enough():
            self._woken.set()

    def end(self, error: BaseException | None) -> None:
        self._error = error
        self.cancelled = True
        self._woken.set()

    def deliveries(self, count: int) -> pa.RecordBatch:
        """Return the first `count` of the messages."""
        self._convert()
        return pa.concat_batches([deliveries(0), *self._batches]).slice(0, count)

    def _complete(self) -> bool:
        return self._enough() or self.cancelled

    def _enough(self) -> bool:
        return len(self.messages) >= self._wanted or self.size >= self._max_bytes

    def _convert(self) -> None:
        if came := self.messages[self._converted :]:
            self._batches.append(received(came, self.claims.channel))
            self._converted += len(came)
