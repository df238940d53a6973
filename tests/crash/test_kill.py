"""kill -9 at each crash point, of a worker and of the driver, then on (or a restart): nothing is lost,
nothing arrives twice, and a replayed batch has the same bytes."""

from __future__ import annotations

import json
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pika
import pytest

from babelqueue_spark.options import read_options
from tests.brokers import short_claims, url_of
from tests.crash.program import run as run_program
from tests.servers.servicebus import ServiceBusServer
from tests.streams import envelope, left, publish

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

MESSAGES = 3000
POINTS = [
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
Waiting = Callable[[str, str], int]
"""Messages of a queue, by URL and name, that the broker could hand out now."""
Declare = Callable[[str, str], None]
"""Makes a queue, by URL and name, unless the first message is to make it."""


class Reading:
    """Queues full of messages, one for each point, and the folder of the query that reads them."""

    def __init__(
        self, url: str, folder: Path, points: Iterable[str], waiting: Waiting, declare: Declare
    ) -> None:
        self.url = url
        self.folder = folder
        self.queues = {point: f"crash-{uuid.uuid4().hex[:12]}" for point in points}
        self._waiting = waiting
        for queue in self.queues.values():
            declare(url, queue)
        self._bodies = {queue: self._filled(queue) for queue in self.queues.values()}

    def _filled(self, queue: str) -> Counter[str]:
        bodies = [envelope(number, queue).decode() for number in range(MESSAGES)]
        publish(self.url, queue, (body.encode() for body in bodies))
        return Counter(bodies)

    def check(self, point: str) -> None:
        """All messages arrived once, replays had the same bytes, and the broker has none left."""
        queue = self.queues[point]
        out = {path.stem: self._bodies_in(path, queue) for path in (self.folder / "out").glob("*.json")}
        assert sum(out.values(), Counter()) == self._bodies[queue]
        for path in (self.folder / "attempts").glob("*.json"):
            assert self._bodies_in(path, queue) == out[path.stem.partition("-")[0]]
        assert self._waiting(self.url, queue) == 0

    @staticmethod
    def _bodies_in(path: Path, queue: str) -> Counter[str]:
        return Counter(body for name, body in json.loads(path.read_text()) if name == queue)

    def await_lapsed_claims(self, point: str) -> None:
        """Return when the broker has put all messages of a queue back."""
        moment = threading.Event()
        deadline = time.monotonic() + 60
        while self._waiting(self.url, self.queues[point]) < MESSAGES:
            assert time.monotonic() < deadline, "the claims did not lapse"
            moment.wait(0.05)


def run(target: str, reading: Reading, armed: Iterable[str]) -> tuple[int, str]:
    """Exit code and log of the program of `driver.py`, which must reach the points it is armed with."""
    arguments = [
        reading.url,
        str(MESSAGES * len(reading.queues)),
        "1" if target == "driver" else "2",
        str(reading.folder),
        *reading.queues.values(),
    ]
    points = {reading.queues[point]: point for point in armed}
    broker = read_options({"url": reading.url, "queue": "q"}).broker
    program = Path(__file__).with_name("driver.py")
    return run_program(program, reading.folder, arguments, target, points, CRASH_BROKER=broker)


class Killed:
    """Queries that lose their workers, or all of themselves, at the points of a broker."""

    broker: ClassVar[str]
    points: ClassVar[list[str]]
    lapsing: ClassVar[str | None] = None
    """The point whose queue is full again once what was claimed before the kill has lapsed."""

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
        return url_of(cls.broker, request, tmp_path_factory.mktemp("queue"))

    @pytest.fixture(scope="class")
    @classmethod
    def waiting(cls) -> Waiting:
        return lambda url, queue: left(url, queue, **short_claims(url))

    @staticmethod
    def declare(url: str, queue: str) -> None:
        """The first message makes the queue."""

    @pytest.fixture(scope="class")
    @classmethod
    def killed_workers(cls, url: str, waiting: Waiting, tmp_path_factory: pytest.TempPathFactory) -> Reading:
        """A query that loses a worker at each of the points."""
        reading = Reading(url, tmp_path_factory.mktemp("workers"), cls.points, waiting, cls.declare)
        code, log = run("worker", reading, cls.points)
        assert code == 0, log
        return reading

    @pytest.fixture(scope="class")
    @classmethod
    def killed_driver(cls, url: str, waiting: Waiting, tmp_path_factory: pytest.TempPathFactory) -> Reading:
        """A query that dies while it stands at all points of its tasks, again after its batch, and is started again."""
        points = [*cls.points, IN_BATCH]
        reading = Reading(url, tmp_path_factory.mktemp("driver"), points, waiting, cls.declare)
        code, log = run("driver", reading, cls.points)
        assert code == -signal.SIGKILL, log
        if cls.lapsing is not None:
            reading.await_lapsed_claims(cls.lapsing)
        code, log = run("driver", reading, [IN_BATCH])
        assert code == -signal.SIGKILL, log
        code, log = run("driver", reading, [])
        assert code == 0, log
        return reading


class Crashes(Killed):
    """What must hold of every queue."""

    points = POINTS
    lapsing = "after the journal"

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("point", POINTS)
    def test_killed_worker(self, killed_workers: Reading, point: str) -> None:
        killed_workers.check(point)

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("point", [*POINTS, IN_BATCH])
    def test_killed_driver(self, killed_driver: Reading, point: str) -> None:
        killed_driver.check(point)


class LogCrashes(Killed):
    """What must hold of every log."""

    points = LOG_POINTS

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("point", LOG_POINTS)
    def test_killed_worker(self, killed_workers: Reading, point: str) -> None:
        killed_workers.check(point)

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("point", [*LOG_POINTS, IN_BATCH])
    def test_killed_driver(self, killed_driver: Reading, point: str) -> None:
        killed_driver.check(point)


class TestSqlite(Crashes):
    broker = "sqlite"


class TestRedis(Crashes):
    broker = "redis"


class TestRabbitMQ(Crashes):
    broker = "rabbitmq"


class TestRabbitMQQuorum(Crashes):
    broker = "rabbitmq"

    @staticmethod
    def declare(url: str, queue: str) -> None:
        with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare(queue, durable=True, arguments=arguments)


class TestSqs(Crashes):
    broker = "sqs"


class TestPostgreSQL(Crashes):
    broker = "postgresql"


class TestMariaDB(Crashes):
    broker = "mariadb"


class TestPulsar(Crashes):
    broker = "pulsar"


class TestArtemis(Crashes):
    broker = "artemis"


class TestServiceBus(Crashes):
    broker = "servicebus"

    @pytest.fixture(scope="class")
    @classmethod
    def waiting(cls, hasty_servicebus_server: ServiceBusServer) -> Waiting:
        """Only the stand-in itself knows: its clients see locked messages like others."""
        return lambda _, queue: hasty_servicebus_server.counts(queue)["ready"]


class TestKafka(LogCrashes):
    broker = "kafka"
