"""What a soak keeps: latencies, tables and a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from chaos import tables
from chaos.chart import draw
from chaos.notes import note
from chaos.soak import WARM, _latencies


def sample(second: float, mib: float) -> dict[str, Any]:
    processes = {"jvm": [1, 300, mib], "worker": [3, 60, mib]}
    return {"second": second, "journal files": 9, "checkpoint files": 12, "processes": processes}


@pytest.fixture
def whole() -> dict[str, Any]:
    stream = {
        "title": "Redis", "published": 5000, "arrived": 5000, "batches": 10,
        "p50": 1.0, "p99": 2.0, "longest": 2.5,
        "samples": [sample(0.0, 9.0), sample(60.0, 10.0), sample(65.0, 8.0)],
    }  # fmt: skip
    trial = {"trial": "200 queues", "seconds": 1.0, "mib": 0, "right": False}
    return {"streams": {"redis": stream}, "trials": [trial]}


def test_a_latency_is_from_publishing_to_the_commit_of_the_batch(tmp_path: Path) -> None:
    note(tmp_path / "batches", [0, [0.0]])
    note(tmp_path / "batches", [1, [WARM, WARM + 1.0, WARM + 2.0]])
    found = _latencies(tmp_path, {0: 50.0, 1: WARM + 3.0})
    assert (found["measured"], found["p50"], found["longest"]) == (3, 2.0, 3.0)


def test_the_tables_say_what_was_measured(whole: dict[str, Any]) -> None:
    assert list(tables.soak_streams(whole)) == [["Redis", "5,000", "5,000", "10", "1.00", "2.00", "2.50"]]
    assert list(tables.soak_trials(whole)) == [["200 queues", "1.0", "", "NO"]]


def test_the_chart_is_the_same_each_time(whole: dict[str, Any], tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(whole, tmp_path / name)
    content = (tmp_path / "one.svg").read_bytes()
    assert content == (tmp_path / "two.svg").read_bytes()
    ElementTree.fromstring(content)
