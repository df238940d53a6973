"""A short run of `make chaos`, from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.__main__ import run
from chaos.messages import READ
from chaos.notes import note
from chaos.plan import Fault, Plan
from chaos.setups import SETUPS
from chaos.trial import Trial

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

FAULTS = ["worker", "cut", "broker", "driver"]


def test_under_faults_nothing_is_lost_and_replays_are_the_same(tmp_path: Path) -> None:
    planned = Plan(0, 60.0, {"redis": [Fault(kind, 0.0, 1.0, 0.5) for kind in FAULTS]})
    code = run(tmp_path, planned)
    found = json.loads((tmp_path / "report.json").read_text())["setups"]["redis"]
    assert code == 0, found
    assert [fault["kind"] for fault in found["faults"]] == FAULTS
    assert [fault["hit"] for fault in found["faults"] if fault["hit"].startswith("no ")] == []
    assert found["confirmed"] > 0
    assert_that_a_message_more_is_missed(tmp_path / "redis")


def assert_that_a_message_more_is_missed(folder: Path) -> None:
    for what in ("asked", "confirmed"):
        note(folder / f"ledger-{READ}", [10**9, 1, 1, what])
    assert Trial(SETUPS["redis"], folder).so_far().lost == [f"table: {10**9}"]
