"""kill -9 of a worker process and of the driver around the schedule: what was decided is scheduled, once."""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from babelqueue_spark.exchange import Schedule
from tests.crash.program import run as run_program
from tests.exchange.schedules import waiting
from tests.streams import backlog, publish
from tests.worker.crash_rules import MESSAGES, NOON, cancels, replies
from tests.worker.queues import order, taken

pytestmark = [pytest.mark.spark, pytest.mark.slow]

POINTS = ["before the ledger", "before the schedule", "after the schedule", "after the publish"]


class Trial:
    """Queues full of messages, one for each point, and the program that works them off into a schedule."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/queue.db"
        self.schedule = Schedule(f"sqlite:///{folder}/schedule.db")
        self.queues = {point: f"crash-{uuid.uuid4().hex[:12]}" for point in POINTS}
        for queue in self.queues.values():
            publish(self.url, queue, (order(queue, n=number) for number in range(MESSAGES)))

    def run(self, target: str, armed: Iterable[str]) -> tuple[int, str]:
        arguments = [self.url, self.schedule.url, str(self.folder), *self.queues.values()]
        program = Path(__file__).with_name("schedule_program.py")
        points = {self.queues[point]: point for point in armed}
        return run_program(program, self.folder, arguments, target, points)

    def check(self) -> None:
        """Each job is there as its last message left it, and was put there once; each message was published once."""
        left = {number // 2: number for number in range(MESSAGES)}
        jobs = waiting(self.schedule)
        assert {job["generation"] for job in jobs} == {1}
        assert {(job["job_id"], json.loads(job["data"])["n"]) for job in jobs} == {
            (f"{queue}-{article}", number)
            for queue in self.queues.values()
            for article, number in left.items()
            if not cancels(number)
        }
        assert all((job["send_at"] - NOON).seconds == json.loads(job["data"])["n"] for job in jobs)
        events = [json.loads(body)["data"] for body in taken(self.url, "events", backlog(self.url, "events"))]
        assert sorted((event["of"], event["n"]) for event in events) == sorted(
            (queue, number)
            for queue in self.queues.values()
            for number in range(MESSAGES)
            if replies(number) and not cancels(number)
        )

    def runs(self, point: str) -> Counter[str]:
        """How often the handler saw each message of a queue."""
        return Counter((self.folder / f"{self.queues[point]}-runs").read_text().splitlines())


@pytest.mark.timeout(900)
def test_killed_worker(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    code, log = trial.run("worker", POINTS)
    assert code == 0, log
    trial.check()
    assert set(trial.runs("before the ledger").values()) == {2}
    for point in POINTS[1:]:
        assert set(trial.runs(point).values()) == {1}


@pytest.mark.timeout(900)
def test_killed_driver(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    code, log = trial.run("driver", POINTS)
    assert code == -signal.SIGKILL, log
    code, log = trial.run("driver", [])
    assert code == 0, log
    trial.check()
    for point in POINTS[1:]:
        assert set(trial.runs(point).values()) == {1}
