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

import pytest

from babelqueue_spark.options import read_options
from tests.conftest import BROKERS
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
        """Messages that the broker could hand out now."""
        options = read_options({"url": self.url, "queue": self.queue, "visibilityTimeout": "2s"})
        with options.binding() as binding:
            return binding.backlog(self.queue)

    def check(self) -> None:
        """All messages arrived once, replays had the same bytes, and the broker has none left."""
        out = {path.stem: json.loads(path.read_text()) for path in (self.folder / "out").glob("*.json")}
        arrived = Counter(body for bodies in out.values() for body in bodies)
        assert arrived == Counter(self.bodies)
        for path in (self.folder / "attempts").glob("*.json"):
            number = path.stem.partition("-")[0]
            assert sorted(json.loads(path.read_text())) == sorted(out[number])
        assert self.unfinished() == 0


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
            timeout=280,
            check=False,
        ).returncode
    return code, log.read_text()[-3000:]


@pytest.fixture(scope="module", params=BROKERS)
def broker_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sql":
        return f"sqlite:///{tmp_path_factory.mktemp('queue')}/queue.db"
    return str(request.getfixturevalue("redis_server").url)


@pytest.fixture(scope="module")
def killed_workers(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """One program that loses a worker at each of the points, queue after queue."""
    folder = tmp_path_factory.mktemp("workers")
    trials = {point: Trial(broker_url, folder, point) for point in POINTS}
    code, log = run("worker", *trials.values())
    assert code == 0, log
    return trials


@pytest.mark.timeout(320)
@pytest.mark.parametrize("point", POINTS)
def test_killed_worker(killed_workers: dict[str, Trial], point: str) -> None:
    trial = killed_workers[point]
    assert not (trial.folder / "point").exists()
    trial.check()


@pytest.mark.parametrize("point", [*POINTS, "in foreachBatch"])
def test_killed_driver(broker_url: str, tmp_path: Path, point: str) -> None:
    trial = Trial(broker_url, tmp_path, point)
    assert run("driver", trial)[0] == -signal.SIGKILL
    assert (tmp_path / "control.reached").exists()
    code, log = run("driver", trial)
    assert code == 0, log
    trial.check()


def test_killed_driver_that_comes_back_when_the_claims_have_lapsed(broker_url: str, tmp_path: Path) -> None:
    """The broker has put all messages back by then; the journalled ones are not read again."""
    trial = Trial(broker_url, tmp_path, "after the journal")
    assert run("driver", trial)[0] == -signal.SIGKILL
    assert list(trial.folder.glob("journal/batches/*/*.arrow"))
    assert not list(trial.folder.glob("journal/batches/*/*.ack"))
    moment = threading.Event()
    deadline = time.monotonic() + 30
    while trial.unfinished() < MESSAGES:
        assert time.monotonic() < deadline, "the claims did not lapse"
        moment.wait(0.05)
    code, log = run("driver", trial)
    assert code == 0, log
    trial.check()
