"""kill -9 in the middle of a batch of 10,000 messages, at each point where that could hurt, of an executor's
worker process and of the driver: each message ends handled, retried and then handled, or as a dead letter."""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.forms import form_of
from tests.brokers import url_of
from tests.crash.program import run as run_program
from tests.servers import RedisServer
from tests.streams import backlog, publish
from tests.worker.crash_rules import DEADLY, LAST_ATTEMPT, MESSAGES, fails, replies
from tests.worker.queues import order, taken

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEFORE_THE_LEDGER = ["in a handler", "before the ledger"]
AFTER_THE_LEDGER = ["after the ledger", "in mid-publish", "after the publish"]
POINTS = BEFORE_THE_LEDGER + AFTER_THE_LEDGER
IN_BATCH = "in foreachBatch"


Ends = tuple[str, str, str, str]
"""The broker, the store or `none`, the calls, and the form of messages."""


def event(queue: str, number: int) -> bytes:
    """A message as a program of CloudEvents writes it."""
    named = {"specversion": "1.0", "id": f"{queue}-{number}", "source": "/shop", "type": "urn:babel:order"}
    return json.dumps({**named, "data": {"n": number}}).encode()


MAKERS: dict[str, Callable[[str, int], bytes]] = {
    "babelqueue": lambda queue, number: order(queue, n=number),
    "cloudevents": event,
}


class Trial:
    """Queues full of messages, one for each point, and the folder of the program that works them off."""

    def __init__(self, ends: Ends, folder: Path, points: Iterable[str]) -> None:
        self.url, self.store, self.calls, self.envelope = ends
        self.folder = folder
        self.queues = {point: f"crash-{uuid.uuid4().hex[:12]}" for point in points}
        for queue in self.queues.values():
            publish(self.url, queue, (MAKERS[self.envelope](queue, n) for n in range(MESSAGES)))

    def run(self, target: str, armed: Iterable[str]) -> tuple[int, str]:
        """Exit code and log of `crash_program.py`, which must reach the points it is armed with."""
        arguments = [self.url, self.store, str(self.folder), *self.queues.values()]
        points = {self.queues[point]: point for point in armed}
        program = Path(__file__).with_name("crash_program.py")
        given = {"CRASH_CALLS": self.calls, "CRASH_ENVELOPE": self.envelope}
        return run_program(program, self.folder, arguments, target, points, **given)

    @property
    def under_way(self) -> int:
        """Calls that are under way when a process is killed in one of them, besides that one."""
        return int(self.calls.split()[0]) - 1

    @property
    def publishes_once(self) -> bool:
        """Whether a crash after publishing leaves no second copy of a retry or a dead letter."""
        return not self.url.startswith("amqp")

    def check(self, point: str) -> Counter[tuple[int, int]]:
        """Each message came to one end; how often handlers saw each, by number and attempts."""
        queue = self.queues[point]
        effects = Counter(map(int, self._lines(f"{queue}-effects")))
        doomed = {number for number in range(MESSAGES) if fails(number, 1)}
        assert effects.keys() == set(range(MESSAGES)) - doomed
        if self.store != "none":
            assert effects.total() - len(effects) <= self.under_way
        answers = self._bodies(f"{queue}-replies")
        assert len(answers) == len({body["meta"]["id"] for body in answers}) or not self.publishes_once
        ids = {(body["data"]["to"], body["meta"]["id"]) for body in answers}
        assert sorted(number for number, _ in ids) == sorted(filter(replies, effects.keys()))
        dead = self._bodies(f"{queue}.dlq")
        assert len(dead) == len(doomed) or not self.publishes_once
        assert len({body["meta"]["id"] for body in dead}) == len(doomed)
        assert {body["data"]["n"] for body in dead} == doomed
        assert {body["dead_letter"]["attempts"] for body in dead} == {LAST_ATTEMPT}
        assert taken(self.url, queue, 0) == []
        runs = Counter(tuple(map(int, line.split())) for line in self._lines(f"{queue}-runs"))
        assert runs.keys() == {
            (number, attempts)
            for number in range(MESSAGES)
            for attempts in range(2 if fails(number, 0) else 1)
        }
        return runs

    def _bodies(self, queue: str) -> list[Any]:
        bodies = pa.array(taken(self.url, queue, backlog(self.url, queue)), pa.binary())
        rows = form_of(self.envelope).decode(pa.RecordBatch.from_arrays([bodies], ["body"])).to_pylist()
        return [{**row, "data": json.loads(row["data"])} for row in rows]

    def _lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()


def test_the_deadly_message_is_in_the_middle() -> None:
    assert not fails(DEADLY, 0)
    assert MESSAGES // 4 < DEADLY < MESSAGES * 3 // 4
    assert sum(fails(number, 0) for number in range(MESSAGES)) == MESSAGES * 5 // 100


def firsts(runs: Counter[tuple[int, int]]) -> list[int]:
    """How often handlers saw each message that had not failed before."""
    return [count for (_, attempts), count in runs.items() if attempts == 0]


class Crashes:
    """What must hold of every broker, with idempotency and without."""

    broker: ClassVar[str]
    effects_once: ClassVar[bool]
    calls: ClassVar[str] = "1 plain"
    envelope: ClassVar[str] = "babelqueue"

    @pytest.fixture(scope="class")
    @classmethod
    def ends(
        cls,
        request: pytest.FixtureRequest,
        redis_server: RedisServer,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Ends:
        url = url_of(cls.broker, request, tmp_path_factory.mktemp("queue"))
        return url, redis_server.url if cls.effects_once else "none", cls.calls, cls.envelope

    @pytest.fixture(scope="class")
    @classmethod
    def killed_workers(cls, ends: Ends, tmp_path_factory: pytest.TempPathFactory) -> Trial:
        """A batch of 10,000 that loses a worker at each of the points."""
        trial = Trial(ends, tmp_path_factory.mktemp("workers"), POINTS)
        code, log = trial.run("worker", POINTS)
        assert code == 0, log
        return trial

    @pytest.fixture(scope="class")
    @classmethod
    def killed_driver(cls, ends: Ends, tmp_path_factory: pytest.TempPathFactory) -> Trial:
        """A driver that dies while its tasks stand at all points, again after the batch, and is started again."""
        trial = Trial(ends, tmp_path_factory.mktemp("driver"), [*POINTS, IN_BATCH])
        for armed in (POINTS, [IN_BATCH]):
            code, log = trial.run("driver", armed)
            assert code == -signal.SIGKILL, log
        code, log = trial.run("driver", [])
        assert code == 0, log
        return trial

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("point", POINTS)
    def test_killed_worker(self, killed_workers: Trial, point: str) -> None:
        runs = killed_workers.check(point)
        assert max(runs.values()) <= 2
        if killed_workers.store != "none":
            repeats = [count - 1 for (number, attempts), count in runs.items() if not fails(number, attempts)]
            assert sum(repeats) <= 1 + killed_workers.under_way
        if point in AFTER_THE_LEDGER:
            assert all(count == 1 for count in firsts(runs))
            assert runs.total() == len(runs) or not killed_workers.publishes_once

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("point", [*POINTS, IN_BATCH])
    def test_killed_driver(self, killed_driver: Trial, point: str) -> None:
        runs = killed_driver.check(point)
        assert max(firsts(runs)) <= 2
        assert max(runs.values()) <= (2 if killed_driver.publishes_once else 3)


class TestSqlite(Crashes):
    broker = "sqlite"
    effects_once = False


class TestRedis(Crashes):
    broker = "redis"
    effects_once = True


class TestRabbitMQ(Crashes):
    broker = "rabbitmq"
    effects_once = True


class TestSqliteBeside(Crashes):
    """With 50 calls of an async handler under way."""

    broker = "sqlite"
    effects_once = False
    calls = "50 async"


class TestRedisBeside(Crashes):
    """With 50 calls of a plain handler under way: a kill repeats no more than these."""

    broker = "redis"
    effects_once = True
    calls = "50 plain"


class TestSqliteEvents(Crashes):
    """With messages that are no envelopes, on a broker without headers."""

    broker = "sqlite"
    effects_once = False
    envelope = "cloudevents"
