"""The queues that a binding uses, made where they are missing."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from pika.channel import Channel

from babelqueue_spark.bindings.rabbitmq.client import Done, RabbitClient
from babelqueue_spark.errors import BrokerError, QueueNotFoundError

_IDLE_WAIT_QUEUE = 3_600_000
"""Milliseconds for which a wait queue outlives its last message."""
_WAITING = re.compile(r".+\.delay\.(quorum\.)?[0-9]+")
_KEEPING = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


class Queues:
    """Declares each queue once."""

    def __init__(self, client: RabbitClient) -> None:
        self._client = client
        self._declared: set[str] = set()

    def ready(self, queue: str) -> int:
        """Messages ready in the queue, which is made where it is missing.

        What was on its way to a consumer of ours before the server answered has arrived with the answer.
        """
        self.ensure(queue)
        try:
            answer = self._client.call(partial(_declare, queue, passive=True))
        except BrokerError:
            self.forget()
            self.ensure(queue)
            answer = self._client.call(partial(_declare, queue, passive=True))
        count: int = answer.method.message_count
        return count

    def ensure(self, queue: str) -> None:
        """Make the queue where it is missing; one that exists may have any arguments."""
        if queue in self._declared:
            return
        if not self.exists(queue):
            self._client.call_aside(partial(_declare, queue, durable=True))
        self._declared.add(queue)

    def exists(self, queue: str) -> bool:
        try:
            self._client.call_aside(partial(_declare, queue, passive=True))
        except QueueNotFoundError:
            return False
        return True

    def temporary(self, queue: str, idle: int) -> None:
        """Make a queue that goes when it was unused for so many milliseconds."""
        self._client.call_aside(partial(_declare, queue, durable=True, arguments={"x-expires": idle}))
        self._declared.add(queue)

    def waiting(self, queue: str, delay: int, kind: str) -> str:
        """Make `<queue>.delay.<milliseconds>`, which hands its messages to the queue after that time.

        A use keeps it for as long as a message may wait, and an hour. One of `kind` quorum has a name of its
        own and stays: it keeps messages that the queue does not take.
        """
        name = f"{queue}.delay.{'quorum.' if kind == 'quorum' else ''}{delay}"
        arguments = {
            "x-message-ttl": delay,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
            **(_KEEPING if kind == "quorum" else {"x-expires": delay + _IDLE_WAIT_QUEUE}),
        }
        self._client.call_aside(partial(_declare, name, durable=True, arguments=arguments))
        return name

    def forget(self) -> None:
        """Declare again what is used next: a queue may have been deleted."""
        self._declared.clear()


def is_waiting(queue: str) -> bool:
    """Return whether this is the name of a wait queue."""
    return _WAITING.fullmatch(queue) is not None


def _declare(queue: str, channel: Channel, done: Done, **arguments: Any) -> None:
    channel.queue_declare(queue, callback=done, **arguments)
