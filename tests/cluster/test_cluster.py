"""SIGKILL on a cluster: Python workers, executors, hosts and the driver. Afterwards each message has arrived once."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash.program import HERE, ROOT
from tests.crash.program import run as run_program
from tests.crash.readings import IN_BATCH, KINDS, QUEUE_POINTS, Reading
from tests.programs import run_command
from tests.s3 import S3Server
from tests.servers.cluster import SparkCluster
from tests.streams import envelope, publish

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

BROKERS = ["redis", "rabbitmq"]
OTHERS = ["first undisturbed", "second undisturbed", "third undisturbed"]
"""Points that nobody reaches."""
SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}


class OnCluster:
    """Queues full of messages, read by a program whose tasks run on a cluster.

    Args:
        points: what happens in the queues of each broker: a point, or `point@target`.
        journals: URL under which each broker's query has its journal; by default a folder.
    """

    def __init__(
        self,
        cluster: SparkCluster,
        python: Path,
        folder: Path,
        request: pytest.FixtureRequest,
        points: Sequence[str],
        brokers: Sequence[str] = BROKERS,
        journals: str = "",
    ) -> None:
        self._readings = {
            broker: Reading(KINDS[broker], points, folder / broker, request) for broker in brokers
        }
        self._points = points
        self._journals = journals
        self._cluster = cluster
        self._python = python
        self._folder = folder

    def run(self, target: str, armed: Iterable[str], **settings: str) -> tuple[int, str]:
        """Exit code and log of the program, with those of the points armed."""
        armed = list(armed)
        readings = self._readings.values()
        points = {queue: point for reading in readings for queue, point in reading.armed(armed).items()}
        executors = {"PYTHONPATH": HERE / "inject", "PYSPARK_PYTHON": self._python}
        given = {
            "spark.executor.memory": "512m",
            "spark.task.maxFailures": "20",
            **{f"spark.executorEnv.{name}": str(value) for name, value in executors.items()},
            **settings,
        }
        submitted = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        packages = next(self._python.parents[1].glob("lib/python*/site-packages"))
        return run_program(
            HERE / "driver.py",
            self._folder,
            ["1", json.dumps(self._described())],
            target,
            points,
            CRASH_BROKERS=",".join(self._readings),
            CRASH_MASTER=self._cluster.url,
            PYTHONPATH=os.pathsep.join([str(HERE / "inject"), str(packages), str(ROOT)]),
            PYSPARK_PYTHON=str(self._python),
            PYSPARK_DRIVER_PYTHON=str(self._python),
            PYSPARK_SUBMIT_ARGS=shlex.join([*submitted, "pyspark-shell"]),
        )

    def await_lapsed_claims(self) -> None:
        for reading in self._readings.values():
            reading.await_lapsed_claims()

    def check(self) -> None:
        for reading in self._readings.values():
            for point in self._points:
                reading.check(point)

    def _described(self) -> list[dict[str, Any]]:
        every = {broker: reading.description() for broker, reading in self._readings.items()}
        if not self._journals:
            return list(every.values())
        return [{**one, "journal": f"{self._journals}/{broker}"} for broker, one in every.items()]


def examined(cluster: SparkCluster, python: Path, folder: Path, *arguments: str) -> list[dict[str, str]]:
    """What the job `doctor` finds on executors."""
    command = [str(python), "-m", "babelqueue_spark.jobs", "doctor", "--master", cluster.url, *arguments]
    run_command(
        [*command, "--json", f"{folder}/findings.json"],
        folder,
        PYSPARK_PYTHON=str(python),
        PYSPARK_SUBMIT_ARGS=shlex.join([*cluster.awaited(), "pyspark-shell"]),
    )
    found: list[dict[str, str]] = json.loads((folder / "findings.json").read_text())["findings"]
    return [each for each in found if each["where"]]


def test_worker_executor_and_host(
    cluster: SparkCluster, python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    queue = f"sqlite:///{tmp_path}/queue.db"
    publish(queue, "orders", [envelope(1)])
    found = examined(
        cluster, python, tmp_path, "--url", queue, "--queue", "orders", "--journal", f"{tmp_path}/new"
    )
    assert {(each["check"], each["status"]) for each in found} == {
        (check, "ok") for check in ("Python", "packages", "extra sql", "queue orders", "journal")
    }
    assert len({each["where"] for each in found}) == len(cluster.workers)
    assert not (tmp_path / "new").exists()
    points = ["after the claim@worker", "after the journal@executor", "in mid-acknowledge@host"]
    reading = OnCluster(cluster, python, tmp_path, request, points, ["redis"])
    code, log = reading.run("worker", points)
    assert code == 0, log
    reading.check()


@pytest.mark.nightly
class TestLong:
    @pytest.mark.parametrize("target", ["worker", "executor"])
    def test_each_point(
        self, cluster: SparkCluster, python: Path, tmp_path: Path, request: pytest.FixtureRequest, target: str
    ) -> None:
        reading = OnCluster(cluster, python, tmp_path, request, QUEUE_POINTS)
        code, log = reading.run(target, QUEUE_POINTS)
        assert code == 0, log
        reading.check()

    @pytest.mark.parametrize("broker", BROKERS)
    @pytest.mark.parametrize("point", ["after the claim", "after the journal", "in mid-acknowledge"])
    def test_a_lost_host(
        self,
        cluster: SparkCluster,
        python: Path,
        tmp_path: Path,
        request: pytest.FixtureRequest,
        point: str,
        broker: str,
    ) -> None:
        points = [point, *OTHERS]
        reading = OnCluster(cluster, python, tmp_path, request, points, [broker])
        code, log = reading.run("host", [point])
        assert code == 0, log
        reading.check()

    @pytest.mark.parametrize("broker", BROKERS)
    def test_a_journal_in_a_bucket(
        self, python: Path, tmp_path: Path, request: pytest.FixtureRequest, broker: str
    ) -> None:
        points = ["after the claim@executor", "after the journal@worker", "in mid-acknowledge@host"]
        with S3Server() as s3, SparkCluster() as cluster:
            journals = f"s3://{s3.bucket}/journals"
            reading = OnCluster(cluster, python, tmp_path, request, points, [broker], journals)
            code, log = reading.run("worker", points)
        assert code == 0, log
        reading.check()

    @pytest.mark.parametrize("journal", ["folder", "bucket"])
    def test_the_driver(
        self, python: Path, tmp_path: Path, request: pytest.FixtureRequest, journal: str
    ) -> None:
        points = [*QUEUE_POINTS, IN_BATCH]
        with S3Server() as s3, SparkCluster(cores=8) as cluster:
            journals = f"s3://{s3.bucket}/journals" if journal == "bucket" else ""
            reading = OnCluster(cluster, python, tmp_path, request, points, journals=journals)
            code, log = reading.run("driver", QUEUE_POINTS)
            assert code == -signal.SIGKILL, log
            reading.await_lapsed_claims()
            code, log = reading.run("driver", [IN_BATCH])
            assert code == -signal.SIGKILL, log
            code, log = reading.run("driver", [])
        assert code == 0, log
        reading.check()

    @pytest.mark.parametrize("point", ["after the claim", "after the journal", "in mid-acknowledge"])
    def test_speculation(
        self, cluster: SparkCluster, python: Path, tmp_path: Path, request: pytest.FixtureRequest, point: str
    ) -> None:
        """A task stands still on one host: Spark reads its partition on the other one, too.

        RabbitMQ gives what the slow task had claimed to the next run, which drops it.
        """
        reading = OnCluster(cluster, python, tmp_path, request, [point, *OTHERS])
        for armed in ([point], []):
            code, log = reading.run("nobody", armed, **SPECULATING)
            assert code == 0, log
        reading.check()
