"""kill -9 at each crash point, of a worker and of the driver, then on (or a restart): nothing is lost,
nothing arrives twice, and a replayed batch has the same bytes.

One program reads from several brokers, as most of its time is Spark's. Each class has the brokers of one program
that loses its driver; what is run for it is run once, where the class runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from tests.crash.program import HERE
from tests.crash.program import run as run_program
from tests.crash.readings import IN_BATCH, KINDS, LOG_POINTS, QUEUE_POINTS, Reading
from tests.s3 import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

Readings = dict[str, Reading]
"""By the names of `KINDS`."""
ALL_POINTS = list(dict.fromkeys([*LOG_POINTS, *QUEUE_POINTS]))
SPARKS = ["sqlite", "rabbitmq", "kafka", "kinesis", "sqlite-s3"]
"""Those whose killed workers are Spark's; the others' run the same code, and no JVM."""


def run(
    program: str,
    target: str,
    partitions: int,
    folder: Path,
    readings: Sequence[Reading],
    armed: Iterable[str],
) -> tuple[int, str]:
    """Exit code and log of a program, whose readings must reach the points they are armed with."""
    armed = list(armed)
    points = {queue: point for reading in readings for queue, point in reading.armed(armed).items()}
    arguments = [str(partitions), json.dumps([reading.description() for reading in readings])]
    brokers = ",".join(sorted({reading.broker for reading in readings}))
    return run_program(HERE / program, folder, arguments, target, points, CRASH_BROKERS=brokers)


def kill_sparks_workers(folder: Path, readings: Readings) -> None:
    """Run a query for each reading, which loses one of Spark's workers at each of the points."""
    code, log = run("driver.py", "worker", 2, folder, list(readings.values()), ALL_POINTS)
    assert code == 0, log


def kill_workers(folder: Path, readings: Readings) -> None:
    """Read each reading in processes that stand for Spark's workers, and lose one at each of the points."""

    def work(name: str) -> tuple[int, str]:
        (folder / f"program-{name}").mkdir()
        return run("workers.py", "worker", 2, folder / f"program-{name}", [readings[name]], ALL_POINTS)

    with ThreadPoolExecutor(len(readings)) as programs:
        for code, log in programs.map(work, readings):
            assert code == 0, log


def kill_driver(folder: Path, readings: Readings) -> None:
    """Kill the queries while they stand at all points of their tasks, again after their batches, and start them again."""
    every = list(readings.values())
    code, log = run("driver.py", "driver", 1, folder, every, ALL_POINTS)
    assert code == -signal.SIGKILL, log
    for reading in every:
        if reading.lapses:
            reading.await_lapsed_claims()
    code, log = run("driver.py", "driver", 1, folder, every, [IN_BATCH])
    assert code == -signal.SIGKILL, log
    code, log = run("driver.py", "driver", 1, folder, every, [])
    assert code == 0, log


class KilledWorkers:
    """Readings that lost their workers."""

    workers: ClassVar[tuple[str, ...]]

    @pytest.fixture(scope="class")
    @classmethod
    def killed_workers(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Readings:
        folder = tmp_path_factory.mktemp("workers")
        readings = {
            name: Reading(KINDS[name], KINDS[name].points, folder / name, request) for name in cls.workers
        }
        sparks = {name: reading for name, reading in readings.items() if name in SPARKS}
        others = {name: reading for name, reading in readings.items() if name not in SPARKS}
        if sparks:
            kill_sparks_workers(folder, sparks)
        if others:
            kill_workers(folder, others)
        return readings

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Test each point of each broker at which a process is killed."""
        driver = metafunc.function.__name__ == "test_killed_driver"
        names, in_batch = (getattr(self, "drivers", ()), [IN_BATCH]) if driver else (self.workers, [])
        kills = [(name, point) for name in names for point in [*KINDS[name].points, *in_batch]]
        metafunc.parametrize(("name", "point"), kills, ids=["-".join(kill) for kill in kills])

    def test_killed_worker(self, killed_workers: Readings, name: str, point: str) -> None:
        killed_workers[name].check(point)


class Killed(KilledWorkers):
    """Readings that lost their workers, and others, mostly the same, that lost their driver."""

    drivers: ClassVar[tuple[str, ...]]

    @pytest.fixture(scope="class")
    @classmethod
    def killed_driver(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Readings:
        folder = tmp_path_factory.mktemp("driver")
        readings = {
            name: Reading(KINDS[name], [*KINDS[name].points, IN_BATCH], folder / name, request)
            for name in cls.drivers
        }
        kill_driver(folder, readings)
        return readings

    def test_killed_driver(self, killed_driver: Readings, name: str, point: str) -> None:
        killed_driver[name].check(point)


@pytest.mark.timeout(900)
class TestSqlite(Killed):
    workers = drivers = ("sqlite",)


@pytest.mark.timeout(900)
class TestRedis(KilledWorkers):
    workers = ("redis",)


@pytest.mark.timeout(900)
class TestObjectStore(Killed):
    workers = drivers = ("sqlite-s3",)

    @pytest.fixture(scope="class")
    @classmethod
    def bucket(cls) -> Iterator[str]:
        with S3Server() as server:
            yield server.bucket


@pytest.mark.timeout(900)
class TestSparks(Killed):
    workers = drivers = ("rabbitmq", "quorum", "kafka")


@pytest.mark.timeout(900)
class TestKinesis(Killed):
    workers = drivers = ("kinesis",)


@pytest.mark.timeout(900)
class TestQuick(Killed):
    workers = ("postgresql", "mariadb", "artemis")
    drivers = ("redis", *workers)


@pytest.mark.timeout(900)
class TestSlow(Killed):
    workers = drivers = ("sqs", "servicebus", "pulsar")
