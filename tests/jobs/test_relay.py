"""The job relay: rows of an outbox reach their queues, once or continuously."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from babelqueue_spark.exchange import Outbox
from babelqueue_spark.testing import eventually
from tests.exchange.outboxes import store
from tests.exchange.schedules import numbers_in
from tests.jobs.conftest import Run
from tests.programs import INTERRUPTIBLE


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    return Outbox(f"sqlite:///{tmp_path}/shop.db")


def test_once(run: Run, box: Outbox, sqlite: str, queue: str) -> None:
    store(box, range(3), [queue])
    command = ("relay", "--outbox", box.url, "--url", sqlite, "--once")
    assert run(*command) == (0, "relayed 3 messages, 0 failed\n", "")
    assert run(*command) == (0, "relayed 0 messages, 0 failed\n", "")
    assert numbers_in(sqlite, queue) == [0, 1, 2]


def test_it_has_to_be_said_how_often(run: Run, box: Outbox, sqlite: str) -> None:
    done = run("relay", "--outbox", box.url, "--url", sqlite)
    assert done.code == 2
    assert "--once --every" in done.err


def test_it_continues_until_it_is_interrupted(box: Outbox, sqlite: str, queue: str) -> None:
    store(box, range(3), [queue])
    command = [sys.executable, "-m", "babelqueue_spark.jobs", "relay", "--outbox", box.url, "--url", sqlite]
    with subprocess.Popen([*INTERRUPTIBLE, *command, "--every", "100ms"], stderr=subprocess.PIPE) as job:
        eventually(lambda: numbers_in(sqlite, queue) == [0, 1, 2])
        store(box, range(3, 5), [queue])
        eventually(lambda: numbers_in(sqlite, queue) == [0, 1, 2, 3, 4])
        job.send_signal(signal.SIGINT)
        assert job.wait(120) == 130
