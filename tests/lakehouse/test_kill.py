"""SIGKILL of the driver while it writes tables: afterwards each message and each transaction is there once."""

from __future__ import annotations

import json
import shlex
import signal
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.crash.program import run as run_program
from tests.crash.readings import QUEUE_POINTS
from tests.lakehouse import page, tables
from tests.lakehouse.tables import BETWEEN_TABLES
from tests.streams import envelope, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

MESSAGES = 1000
"""In each queue, for each round: enough for a reader task of its own."""
POINTS = {
    "delta": QUEUE_POINTS,
    "iceberg": QUEUE_POINTS,
    "tables": [BETWEEN_TABLES],
    "merged": ["in mid-yield"],
}
URNS = ["urn:babel:orders:created", "urn:babel:mails:sent", "urn:babel:mails:bounced"]


class Tables:
    """The recipes' queues and tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/queue.db"
        self.queues = {
            recipe: {f"crash-{uuid.uuid4().hex[:12]}": point for point in points}
            for recipe, points in POINTS.items()
        }
        self.sent = {recipe: Counter[bytes]() for recipe in POINTS}

    def fill(self, recipes: Iterable[str]) -> None:
        for recipe in recipes:
            for queue in self.queues[recipe]:
                bodies = [envelope(number, queue, job=URNS[number % 3]) for number in range(MESSAGES)]
                publish(self.url, queue, bodies)
                self.sent[recipe].update(bodies)

    def run(self, recipes: Iterable[str], points: Mapping[str, str], commit: str = "") -> tuple[int, str]:
        """Exit code and log of a program with these recipes."""
        readings = {
            recipe: {
                "url": self.url,
                "folder": str(self.folder),
                "queues": list(self.queues[recipe]),
                "expected": self.sent[recipe].total(),
            }
            for recipe in recipes
        }
        tasks = sum(map(len, POINTS.values())) + 2  # for what tables do besides
        submitted = ["--master", f"local[{tasks},4]", *page.SUBMITTED[2:], "pyspark-shell"]
        environment = {"CRASH_BROKERS": "sql", "PYSPARK_SUBMIT_ARGS": shlex.join(submitted)}
        program = Path(__file__).with_name("program.py")
        return run_program(
            program, self.folder, [json.dumps(readings), commit], "driver", points, **environment
        )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Tables whose driver was killed at all points, and again after the commit of a table."""
    lake = Tables(tmp_path_factory.mktemp("killed"))
    lake.fill(POINTS)
    points = {queue: point for queues in lake.queues.values() for queue, point in queues.items()}
    code, log = lake.run(POINTS, points)
    assert code == -signal.SIGKILL, log
    code, log = lake.run(POINTS, {})
    assert code == 0, log
    for recipe in ("delta", "iceberg"):
        lake.fill([recipe])
        code, log = lake.run([recipe], {}, commit=recipe)
        assert code == -signal.SIGKILL, log
    code, log = lake.run(["delta", "iceberg"], {})
    assert code == 0, log
    return lake


@pytest.mark.parametrize("recipe", POINTS)
def test_each_message_and_each_transaction_once(recipe: str, spark: Any, killed: Tables) -> None:
    assert tables.bodies(spark, recipe, killed.folder) == killed.sent[recipe]
    for transactions in tables.transactions(spark, recipe, killed.folder):
        assert set(transactions.values()) <= {1}
        assert transactions or recipe == "merged"
