"""Publishes numbered messages to both queues until it is told to stop, and keeps the ledger of them.

    python -m chaos.producer DESCRIPTION

The ledger `<folder>/ledger-<queue>` has two lines for each chunk: [first number, count, attempt, "asked"]
before it is published, and the same with "confirmed" after. A chunk that the broker has not confirmed is
published again, under the same idempotency key where the broker takes one. DESCRIPTION is the file that
`chaos.trial` writes.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import BabelQueueError
from chaos.messages import body
from chaos.notes import note

CHUNK = 10
LAST_SECONDS = 60.0
"""How long a chunk is published again after the producer was told to stop."""


class Publisher:
    """Publishes chunks to one queue.

    Args:
        given: the description of the trial.
        queue: name of the queue.
    """

    def __init__(self, given: dict[str, Any], queue: str) -> None:
        self._options = {**given["options"], "url": given["direct_url"], "queue": queue}
        self._queue = queue
        self._groups = given["groups"]
        self._ledger = Path(given["folder"], f"ledger-{queue}")
        self._writer = uuid.uuid4().hex[:16]
        self._binding = read_options(self._options).binding()

    def publish(self, first: int, attempts: Iterator[int]) -> None:
        """Publish a chunk until it is confirmed, or the attempts end."""
        messages = outgoing(
            CHUNK,
            body=[body(number, self._queue) for number in range(first, first + CHUNK)],
            key=[
                str(number % self._groups) if self._groups else None for number in range(first, first + CHUNK)
            ],
        )
        key = f"{self._writer}{first:016x}" if self._binding.capabilities.publish_once else None
        for attempt in attempts:
            note(self._ledger, [first, CHUNK, attempt, "asked"])
            try:
                self._binding.publish(self._queue, messages, idempotency_key=key)
            except BabelQueueError as error:
                note(self._ledger.with_name("producer-errors"), str(error))
                self._binding.close()
                self._binding = read_options(self._options).binding()
                time.sleep(0.2)
            else:
                note(self._ledger, [first, CHUNK, attempt, "confirmed"])
                return


def main(description: Path) -> None:
    given = json.loads(description.read_text())
    stop = Path(given["folder"], "stop-producer")
    publishers = [Publisher(given, queue) for queue in given["queues"]]

    def attempts() -> Iterator[int]:
        deadline = None
        for attempt in count(1):
            yield attempt
            if stop.exists():
                deadline = deadline or time.monotonic() + LAST_SECONDS
                if time.monotonic() > deadline:
                    return

    started = time.monotonic()
    for first in count(0, CHUNK):
        if stop.exists():
            return
        for publisher in publishers:
            publisher.publish(first, attempts())
        # A chunk that was late is followed at once: the rate is that of the whole trial.
        time.sleep(max(0.0, started + (first + CHUNK) / given["rate"] - time.monotonic()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
