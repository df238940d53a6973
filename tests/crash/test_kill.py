"""kill -9 at each crash point, of a worker and of the driver, then on (or a restart): nothing is lost,
nothing arrives twice, and a replayed batch has the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from babelqueue_spark.options import read_options
from tests.streams import envelope, publish

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


class Program:
    """The user's program of `driver.py` with its folder; may be told to die."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self.url, self.queue, self.folder = url, queue, folder
        self.bodies = [envelope(n, queue).decode() for n in range(MESSAGES)]
        publish(url, queue, (body.encode() for body in self.bodies))

    def run(self, point: str = "", target: str = "") -> int:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE / "inject"), str(ROOT)]),
            "CRASH_POINT": point,
            "CRASH_TARGET": target,
            "CRASH_FLAG": str(self.folder / "crashed"),
            "CRASH_BROKER": read_options({"url": self.url, "queue": self.queue}).broker,
        }
        command = [sys.executable, str(HERE / "driver.py"), self.url, self.queue, str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.run(
                [*command, str(MESSAGES)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                timeout=150,
                check=False,
            ).returncode

    @property
    def crashed(self) -> bool:
        return (self.folder / "crashed").exists()

    def unfinished(self) -> int:
        """Messages that the broker still has, in whatever state."""
        options = read_options({"url": self.url, "queue": self.queue, "visibilityTimeout": "1s"})
        with options.binding() as binding:
            return binding.backlog(self.queue)

    def await_lapse(self, messages: int) -> None:
        deadline = time.monotonic() + 30
        while self.unfinished() < messages:
            assert time.monotonic() < deadline, "the claims did not lapse"
            time.sleep(0.05)

    def check(self) -> None:
        """All messages arrived once, replays had the same bytes, and the broker has none left."""
        out = {path.stem: json.loads(path.read_text()) for path in (self.folder / "out").glob("*.json")}
        arrived = Counter(body for bodies in out.values() for body in bodies)
        assert arrived == Counter(self.bodies), (self.folder / "log").read_text()[-3000:]
        for path in (self.folder / "attempts").glob("*.json"):
            number = path.stem.partition("-")[0]
            assert sorted(json.loads(path.read_text())) == sorted(out[number])
        assert self.unfinished() == 0


@pytest.fixture
def program(url: str, queue: str, tmp_path: Path) -> Program:
    return Program(url, queue, tmp_path)


@pytest.mark.parametrize("point", POINTS)
def test_killed_worker(program: Program, point: str) -> None:
    assert program.run(point, "worker") == 0, (program.folder / "log").read_text()[-3000:]
    assert program.crashed
    program.check()


@pytest.mark.parametrize("point", [*POINTS, "in foreachBatch"])
def test_killed_driver(program: Program, point: str) -> None:
    assert program.run(point, "driver") == -signal.SIGKILL
    assert program.crashed
    assert program.run() == 0, (program.folder / "log").read_text()[-3000:]
    program.check()


@pytest.mark.parametrize("point", ["after the journal", "in mid-acknowledge", "after the acknowledge"])
def test_killed_driver_that_comes_back_after_the_claims_lapsed(program: Program, point: str) -> None:
    """The broker has long put the messages back; they are recognised and not read again."""
    assert program.run(point, "driver") == -signal.SIGKILL
    journalled = sum(1 for _ in (program.folder / "journal").glob("batches/*/*.arrow"))
    assert journalled
    acknowledged = {"after the journal": 0, "in mid-acknowledge": 1, "after the acknowledge": 1}[point]
    if not acknowledged:
        program.await_lapse(MESSAGES)
    assert program.run() == 0, (program.folder / "log").read_text()[-3000:]
    program.check()
