"""What a consumer has received."""

from __future__ import annotations

import threading
import time
from typing import Any

import pika
import pyarrow as pa
from pika.channel import Channel

from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.rabbitmq.claims import ChannelClaims
from babelqueue_spark.bindings.rabbitmq.messages import Message, message, received


class DeliveryBuffer:
    """Messages in the order in which they came.

    The connection's thread calls `receive` and `end`, the caller's thread all the rest.

    Attributes:
        claims: those of the channel on which the messages come.
        messages: what came; it only grows.
        size: bytes of their bodies.
        cancelled: nothing more will come.
    """

    def __init__(self, claims: ChannelClaims) -> None:
        self.claims = claims
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
        self.messages.append(message(method, properties, body))
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
