"""kill -9 at each crash point, of a worker and of the driver, then on (or a restart): nothing is lost,
nothing arrives twice, and a replayed batch has the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from babelqueue_spark.options import read_options
from tests.brokers import short_claims, url_of
from tests.streams import backlog, envelope, publish

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MESSAGES = 6000
POINTS = [
    "before the claim",
    "after the claim",
    "after the journal",
    "in mid-acknowledge",
    "after the acknowledge",
    "after the mark",
    "in mid-yield",
]
DRIVER_POINTS = [*POINTS, "in foreachBatch"]
# All of them where two kinds of brokers stand for the rest, and on each what the journal is for.
JOURNAL_POINTS = ["after the claim", "after the journal", "after the acknowledge"]
LAPSED = "after the journal, and back when the broker has put all messages back"


class Trial:
    """A queue full of messages, and the folder of the program that reads it."""

    def __init__(self, url: str, parent: Path, point: str) -> None:
        self.url = url
        self.queue = f"crash-{uuid.uuid4().hex[:12]}"
        self.folder = parent / self.queue
        self.folder.mkdir()
        self.bodies = [envelope(n, self.queue).decode() for n in range(MESSAGES)]
        publish(url, self.queue, (body.encode() for body in self.bodies))
        (self.folder / "point").write_text(point)

    def unfinished(self) -> int:
        return backlog(self.url, self.queue, **short_claims(self.url))

    def check(self) -> None:
        """All messages arrived once, replays had the same bytes, and the broker has none left."""
        out = {path.stem: json.loads(path.read_text()) for path in (self.folder / "out").glob("*.json")}
        arrived = Counter(body for bodies in out.values() for body in bodies)
        assert arrived == Counter(self.bodies)
        for path in (self.folder / "attempts").glob("*.json"):
            number = path.stem.partition("-")[0]
            assert sorted(json.loads(path.read_text())) == sorted(out[number])
        assert self.unfinished() == 0

    def await_lapsed_claims(self) -> None:
        """Return when the broker has put all messages back."""
        moment = threading.Event()
        deadline = time.monotonic() + 60
        while self.unfinished() < MESSAGES:
            assert time.monotonic() < deadline, "the claims did not lapse"
            moment.wait(0.05)


def run(target: str, *trials: Trial) -> tuple[int, str]:
    """Exit code and log of the program of `driver.py`."""
    folder = trials[0].folder
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE / "inject"), str(ROOT)]),
        "CRASH_CONTROL": str(folder.parent / "control.txt"),
        "CRASH_TARGET": target,
        "CRASH_BROKER": read_options({"url": trials[0].url, "queue": "q"}).broker,
    }
    log = folder / f"log-{uuid.uuid4().hex}"
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, str(HERE / "driver.py"), trials[0].url, str(MESSAGES)]
            + [str(trial.folder) for trial in trials],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            timeout=500,
            check=False,
        ).returncode
    return code, log.read_text()[-3000:]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver_point" in metafunc.fixturenames:
        metafunc.parametrize("driver_point", [*metafunc.cls.driver_points, LAPSED])


class Crashes:
    """What must hold of every broker."""

    broker: ClassVar[str]
    driver_points: ClassVar = JOURNAL_POINTS

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
        return url_of(cls.broker, request, tmp_path_factory.mktemp("queue"))

    @pytest.fixture(scope="class")
    @classmethod
    def killed_workers(cls, url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
        """One program that loses a worker at each of the points, queue after queue."""
        folder = tmp_path_factory.mktemp("workers")
        trials = {point: Trial(url, folder, point) for point in POINTS}
        code, log = run("worker", *trials.values())
        assert code == 0, log
        return trials

    @pytest.fixture(scope="class")
    @classmethod
    def killed_drivers(cls, url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
        """A program that dies at each of the points, queue after queue, and is started again each time."""
        folder = tmp_path_factory.mktemp("drivers")
        trials = {
            point: Trial(url, folder, "after the journal" if point == LAPSED else point)
            for point in [*cls.driver_points, LAPSED]
        }
        for trial in trials.values():
            code, log = run("driver", *trials.values())
            assert code == -signal.SIGKILL, log
            assert not (trial.folder / "point").exists()
            assert not (trial.folder / "finished").exists()
        assert list(trial.folder.glob("journal/batches/*/*.arrow"))
        assert not list(trial.folder.glob("journal/batches/*/*.ack"))
        trial.await_lapsed_claims()
        code, log = run("driver", *trials.values())
        assert code == 0, log
        return trials

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("point", POINTS)
    def test_killed_worker(self, killed_workers: dict[str, Trial], point: str) -> None:
        trial = killed_workers[point]
        assert not (trial.folder / "point").exists()
        trial.check()

    @pytest.mark.timeout(900)
    def test_killed_driver(self, killed_drivers: dict[str, Trial], driver_point: str) -> None:
        killed_drivers[driver_point].check()


class TestSqlite(Crashes):
    broker = "sqlite"
    driver_points = DRIVER_POINTS


class TestRedis(Crashes):
    broker = "redis"
    driver_points = DRIVER_POINTS


class TestRabbitMQ(Crashes):
    broker = "rabbitmq"


class TestSqs(Crashes):
    broker = "sqs"


class TestPostgreSQL(Crashes):
    broker = "postgresql"


class TestMariaDB(Crashes):
    broker = "mariadb"
