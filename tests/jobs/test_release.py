"""The job release: what is due leaves the schedule; what waits is listed, and cancelled by its id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.exchange import Schedule
from tests.exchange.schedules import claim, numbers_in, store, waiting
from tests.jobs.conftest import Run
from tests.programs import INTERRUPTIBLE


@pytest.fixture
def schedule(tmp_path: Path) -> Schedule:
    return Schedule(f"sqlite:///{tmp_path}/schedule.db")


def test_what_is_due_is_published(run: Run, schedule: Schedule, sqlite: str, queue: str) -> None:
    store(schedule, [1, 2])
    store(schedule, [3], due_in=3600)
    done = run("release", "--schedule", schedule.url, "--url", sqlite, "--queue", queue)
    assert done == (0, "released 2 messages, 0 failed\n", "")
    assert numbers_in(sqlite, queue) == [1, 2]


def test_what_fails_is_said_and_stays(run: Run, schedule: Schedule, sqlite: str) -> None:
    store(schedule, [1])
    done = run("release", "--schedule", schedule.url, "--url", sqlite)
    assert (done.code, done.out) == (1, "released 0 messages, 1 failed\n")
    assert waiting(schedule)[0]["state"] == "failed"


def test_jobs_are_listed_and_cancelled(run: Run, schedule: Schedule) -> None:
    store(schedule, [1, 2, 3])
    claim(schedule, limit=1)
    found = run("release", "list", "--schedule", schedule.url).out.splitlines()
    assert [line.split()[2:4] for line in found] == [
        ["job-1", "claimed"],
        ["job-2", "waiting"],
        ["job-3", "waiting"],
    ]
    as_json = run("release", "list", "--schedule", schedule.url, "--json").out.splitlines()
    assert json.loads(as_json[2])["job_id"] == "job-3"
    ids = [word for job_id in ("job-1", "job-3", "unknown") for word in ("--id", job_id)]
    done = run("release", "cancel", "--schedule", schedule.url, *ids)
    assert (done.code, done.out) == (0, "cancelled 1 of 3 jobs\n")
    assert [row["job_id"] for row in waiting(schedule)] == ["job-1", "job-2"]


def test_it_continues_until_it_is_interrupted(schedule: Schedule, sqlite: str, queue: str) -> None:
    store(schedule, [1])
    command = ["release", "--schedule", schedule.url, "--url", sqlite, "--queue", queue, "--every", "10ms"]
    process: Any = subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, "-m", "babelqueue_spark.jobs", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            assert process.stdout.readline() == "released 1 messages, 0 failed\n"
            store(schedule, [2])
            assert process.stdout.readline() == "released 1 messages, 0 failed\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "release: interrupted\n")
    assert numbers_in(sqlite, queue) == [1, 2]
