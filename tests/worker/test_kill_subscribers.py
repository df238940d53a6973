"""kill -9 of a worker process and of the driver among subscribers and requests: what was decided is decided once."""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.worker.handlers.subscribing import EXECUTION_FAILED
from tests.brokers import url_of
from tests.crash.program import run as run_program
from tests.servers import RedisServer
from tests.streams import backlog, publish
from tests.worker.crash_rules import MESSAGES, REQUEST, asks, raises, replies
from tests.worker.queues import taken
from tests.worker.test_kill import AFTER_THE_LEDGER

pytestmark = [pytest.mark.spark, pytest.mark.slow]

POINTS = ["in a subscriber", "before the ledger", *AFTER_THE_LEDGER]


def body_of(queue: str, number: int) -> bytes:
    """A request, or a message that nobody handles but subscribers."""
    urn, meta = (
        (REQUEST, {"reply_to": f"{queue}-replies"}) if asks(number) else ("urn:babel:orders:created", None)
    )
    return str(EnvelopeCodec.encode(EnvelopeCodec.make(urn, {"n": number}, queue=queue, meta=meta))).encode()


class Trial:
    """Queues full of messages, one for each point, and the program that works them off."""

    def __init__(self, url: str, store: str, folder: Path) -> None:
        self.url, self.store, self.folder = url, store, folder
        self.queues = {point: f"crash-{uuid.uuid4().hex[:12]}" for point in POINTS}
        self.ids: dict[str, dict[int, str]] = {}
        for queue in self.queues.values():
            sent = [body_of(queue, number) for number in range(MESSAGES)]
            self.ids[queue] = {number: json.loads(body)["meta"]["id"] for number, body in enumerate(sent)}
            publish(url, queue, sent)
            assert backlog(url, f"{queue}-replies") == 0  # a reply creates no queue
        self._failures: list[Any] | None = None

    def run(self, target: str, armed: Iterable[str]) -> tuple[int, str]:
        arguments = [self.url, self.store, str(self.folder), *self.queues.values()]
        program = Path(__file__).with_name("subscriber_program.py")
        return run_program(
            program, self.folder, arguments, target, {self.queues[point]: point for point in armed}
        )

    def check(self, point: str) -> tuple[Counter[str], Counter[str]]:
        """All was heard, answered and reported, and published once; how often each was heard, and asked."""
        queue = self.queues[point]
        ids = self.ids[queue]
        everything = set(range(MESSAGES))
        events = self._once(f"{queue}-events")
        assert sorted(body["data"]["n"] for body in events) == sorted(filter(replies, everything))
        answers = self._once(f"{queue}-replies")
        assert sorted(body["data"]["to"] for body in answers) == sorted(filter(asks, everything))
        assert all(body["meta"]["causation_id"] == ids[body["data"]["to"]] for body in answers)
        failures = [body for body in self.failures if body["data"]["queue"] == queue]
        assert {body["job"] for body in failures} == {EXECUTION_FAILED}
        assert sorted(body["data"]["id"] for body in failures) == sorted(
            ids[number] for number in filter(raises, everything)
        )
        assert backlog(self.url, f"{queue}.dlq") == 0
        heard, asked = (Counter(self._lines(f"{queue}-{name}")) for name in ("heard", "asked"))
        assert heard.keys() == {f"{name} {number}" for name in ("first", "second") for number in everything}
        assert asked.keys() == {f"{number}" for number in filter(asks, everything)}
        return heard, asked

    @property
    def failures(self) -> list[Any]:
        if self._failures is None:
            self._failures = self._once("failures")
        return self._failures

    def _once(self, queue: str) -> list[Any]:
        """The messages of a queue; where the broker drops no repeats, each once."""
        found = [json.loads(body) for body in taken(self.url, queue, backlog(self.url, queue))]
        distinct = {body["meta"]["id"]: body for body in found}
        assert len(distinct) == len(found) or self.url.startswith("amqp")
        return [*distinct.values()]

    def _lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()


class Crashes:
    """What must hold of every broker, with idempotency and without."""

    broker: ClassVar[str]
    effects_once: ClassVar[bool]

    @pytest.fixture(scope="class")
    @classmethod
    def ends(
        cls,
        request: pytest.FixtureRequest,
        redis_server: RedisServer,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> tuple[str, str]:
        """The broker, and the store or `none`; a queue for failures of its own."""
        url = url_of(cls.broker, request, tmp_path_factory.mktemp("queue"))
        taken(url, "failures", backlog(url, "failures"))
        return url, redis_server.url if cls.effects_once else "none"

    @pytest.fixture(scope="class")
    @classmethod
    def killed_workers(cls, ends: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Trial:
        trial = Trial(*ends, tmp_path_factory.mktemp("workers"))
        code, log = trial.run("worker", POINTS)
        assert code == 0, log
        return trial

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("point", POINTS)
    def test_killed_worker(self, killed_workers: Trial, point: str) -> None:
        heard, asked = killed_workers.check(point)
        again = sum(count - 1 for count in (*heard.values(), *asked.values()))
        assert max(heard.values()) <= 2
        if point in AFTER_THE_LEDGER:
            assert again == 0
        elif self.effects_once:
            assert again <= 3  # the one message that was under way


class TestSqlite(Crashes):
    broker = "sqlite"
    effects_once = False

    @pytest.mark.timeout(900)
    def test_killed_driver(self, ends: tuple[str, str], tmp_path: Path) -> None:
        trial = Trial(*ends, tmp_path)
        code, log = trial.run("driver", POINTS)
        assert code == -signal.SIGKILL, log
        code, log = trial.run("driver", [])
        assert code == 0, log
        for point in POINTS:
            heard, asked = trial.check(point)
            assert max((*heard.values(), *asked.values())) <= 2


class TestRedis(Crashes):
    broker = "redis"
    effects_once = True


class TestRabbitMQ(Crashes):
    broker = "rabbitmq"
    effects_once = True
