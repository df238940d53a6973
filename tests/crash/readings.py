"""The brokers that the crash tests read from, and queues of theirs that are full of messages."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest

from babelqueue_spark.connector.options import read_options
from tests.brokers import SERVERS, url_of
from tests.streams import envelope, left, publish, short_claims

MESSAGES = 3000
QUEUE_POINTS = [
    "before the claim",
    "after the claim",
    "after the journal",
    "in mid-acknowledge",
    "after the acknowledge",
    "after the mark",
    "in mid-yield",
]
LOG_POINTS = ["before the read", "after the read", "in mid-yield"]
IN_BATCH = "in foreachBatch"
LAPSING = "after the journal"
"""The point whose queue is full again once what was claimed before the kill has lapsed."""
Waiting = Callable[[str], int]
"""Messages of a queue, by name, that the broker could hand out now."""


@dataclass(frozen=True)
class Kind:
    """A broker, and what is special about its queues.

    Attributes:
        broker: as `tests.brokers` knows it.
        points: where workers are killed.
        declare: makes a queue, by URL and name; None = the first message makes it.
        in_bucket: whether the journal is on an object store.
    """

    broker: str
    points: list[str]
    declare: Callable[[str, str], None] | None = None
    in_bucket: bool = False

    def waiting(self, url: str, request: pytest.FixtureRequest) -> Waiting:
        """How to ask the broker what it has left."""
        if self.broker == "servicebus":
            # Only the stand-in itself knows: its clients see locked messages like others.
            server: Any = request.getfixturevalue(SERVERS["servicebus"])
            return lambda queue: int(server.counts(queue)["ready"])
        return lambda queue: left(url, queue, **short_claims(url))


def _declare_quorum(url: str, queue: str) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})


KINDS = {
    **{broker: Kind(broker, QUEUE_POINTS) for broker in ["sqlite", *SERVERS]},
    "quorum": Kind("rabbitmq", QUEUE_POINTS, _declare_quorum),
    "kafka": Kind("kafka", LOG_POINTS),
    "kinesis": Kind("kinesis", LOG_POINTS),
    "sqlite-s3": Kind("sqlite", QUEUE_POINTS, in_bucket=True),
}


class Reading:
    """Queues full of messages, one for each point, and the folder of the query that reads them."""

    def __init__(
        self, kind: Kind, points: Iterable[str], folder: Path, request: pytest.FixtureRequest
    ) -> None:
        folder.mkdir()
        self.url = url_of(kind.broker, request, folder)
        self.lapses = LAPSING in points
        self._folder = folder
        place = f"s3://{request.getfixturevalue('bucket')}/{folder.parent.name}" if kind.in_bucket else folder
        self._journal = f"{place}/journal"
        self._queues = {point: f"crash-{uuid.uuid4().hex[:12]}" for point in points}
        self._waiting = kind.waiting(self.url, request)
        for queue in self._queues.values():
            if kind.declare is not None:
                kind.declare(self.url, queue)
        self._bodies = {queue: self._filled(queue) for queue in self._queues.values()}

    def _filled(self, queue: str) -> Counter[str]:
        bodies = [envelope(number, queue).decode() for number in range(MESSAGES)]
        publish(self.url, queue, (body.encode() for body in bodies))
        return Counter(bodies)

    @property
    def broker(self) -> str:
        return read_options({"url": self.url, "queue": "q"}).broker

    def armed(self, points: Iterable[str]) -> Mapping[str, str]:
        """Queue → point, for those of the points that the reading has."""
        return {self._queues[point]: point for point in points if point in self._queues}

    def description(self) -> dict[str, Any]:
        """What `tests.crash.arrivals` makes of it."""
        return {
            "url": self.url,
            "folder": str(self._folder),
            "journal": self._journal,
            "expected": MESSAGES * len(self._queues),
            "queues": list(self._queues.values()),
        }

    def check(self, point: str) -> None:
        """All messages arrived once, replays had the same bytes, and the broker has none left."""
        queue = self._queues[point]
        out = {path.stem: self._bodies_in(path, queue) for path in (self._folder / "out").glob("*.json")}
        assert sum(out.values(), Counter()) == self._bodies[queue]
        for path in (self._folder / "attempts").glob("*.json"):
            assert self._bodies_in(path, queue) == out[path.stem.partition("-")[0]]
        assert self._waiting(queue) == 0

    @staticmethod
    def _bodies_in(path: Path, queue: str) -> Counter[str]:
        return Counter(body for name, body in json.loads(path.read_text()) if name == queue)

    def await_lapsed_claims(self) -> None:
        """Return when the broker has put all messages of the queue of `LAPSING` back."""
        moment = threading.Event()
        deadline = time.monotonic() + 60
        while self._waiting(self._queues[LAPSING]) < MESSAGES:
            assert time.monotonic() < deadline, "the claims did not lapse"
            moment.wait(0.05)
