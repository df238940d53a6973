"""What the broker's management tells of a queue, asked for by messages."""

from __future__ import annotations

import json
import time

from babelqueue_spark.bindings.artemis import amqp
from babelqueue_spark.bindings.artemis.connection import Connection

_ADDRESS = "activemq.management"
_PATIENCE_SECONDS = 30.0
_COUNTS = ("messageCount", "deliveringCount", "scheduledCount")


class Management:
    """Questions and answers over one connection; `AmqpError` where the user may not ask."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._answers = connection.answers()
        self._questions = connection.sender(_ADDRESS, queue=False)

    def ready(self, queue: str) -> int | None:
        """Messages that a consumer could get; None where it knows no such queue."""
        total, *others = map(self._counts(f"queue.{queue.rpartition('::')[2]}").get, _COUNTS)
        return None if total is None else max(0, total - sum(other or 0 for other in others))

    def _counts(self, resource: str) -> dict[str, int | None]:
        """Return what it answers; None in place of an error."""
        reply_to = amqp.text(self._answers.receiver.remote_source.address or "")
        asked = (
            amqp.encoded(
                b"",
                durable=False,
                properties={"reply-to": reply_to, "correlation-id": amqp.text(name)},
                application={"_AMQ_ResourceName": amqp.text(resource), "_AMQ_Attribute": amqp.text(name)},
            )
            for name in _COUNTS
        )
        for refused in self.connection.send(self._questions, asked):
            raise refused
        found: dict[str, int | None] = {}
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(found) < len(_COUNTS):
            if time.monotonic() > deadline:
                raise TimeoutError
            found |= self._answered()
        return found

    def _answered(self) -> dict[str, int | None]:
        arrived = self.connection.read(self._answers, len(_COUNTS))
        return dict(_read(amqp.decoded(raw)) for _, raw in arrived)


def _read(answer: amqp.Message) -> tuple[str, int | None]:
    succeeded = answer.application["_AMQ_OperationSucceeded"]
    return answer.property("correlation-id"), json.loads(answer.body)[0] if succeeded else None
