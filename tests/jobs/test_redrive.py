"""The job redrive: dead letters back to where they came from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.conftest import Run
from tests.streams import backlog, publish
from tests.worker.queues import order, taken
from tests.worker.test_redrive import dead

pytestmark = pytest.mark.spark


def test_it_shows_and_then_moves(spark: Any, sqlite: str, queue: str, run: Run) -> None:
    mine = dead(order(queue, urn="urn:kind:mine"), queue, failed_at=1_767_225_600_000)
    others = [
        dead(order(queue, urn="urn:kind:mine"), queue, reason="bad_order"),
        dead(order(queue, urn="urn:other"), queue),
        dead(order(queue, urn="urn:kind:old"), queue),
    ]
    others += [
        dead(order(queue, urn="urn:kind:late"), queue, failed_at=1_767_225_600_000 + days * 86_400_000)
        for days in (2, -2)
    ]
    publish(sqlite, f"{queue}.dlq", [mine, *others])
    arguments = [
        "redrive",
        "--url",
        sqlite,
        "--queue",
        f"{queue}.dlq",
        "--reason",
        "failed",
        "--urn",
        "urn:kind:*",
    ]
    arguments += ["--after", "2025-12-31", "--before", "2026-01-02", "--where", "attempts = 3"]
    first = run(*arguments, "--dry-run")
    assert (first.code, first.err) == (0, "")
    assert json.loads(mine)["meta"]["id"] in first.out
    assert backlog(sqlite, f"{queue}.dlq") == 6
    assert run(*arguments).code == 0
    assert [json.loads(body)["job"] for body in taken(sqlite, queue, 1)] == ["urn:kind:mine"]
    assert taken(sqlite, f"{queue}.dlq", 5) == others
