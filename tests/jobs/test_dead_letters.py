"""The job dead_letters: what is in a dead-letter queue, as a table, JSON and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.schemas.sensitive import MARK
from tests.catalog.registries import registry
from tests.jobs.conftest import Run
from tests.streams import backlog, publish
from tests.worker.queues import order
from tests.worker.test_redrive import dead

pytestmark = pytest.mark.spark

NOON = 1_767_268_800_000  # 2026-01-01 12:00 UTC
HOUR = 3_600_000
BAD = r"bad $x$ $\nope$ ^{"


@pytest.fixture
def letters(sqlite: str, queue: str) -> str:
    name = f"{queue}.dlq"
    shop, mail = order(queue, urn="urn:shop", note="<script>"), order(queue, urn="urn:mail")
    bodies = [dead(shop, queue, failed_at=NOON + minute * 60_000) for minute in range(5)]
    bodies += [dead(mail, queue, reason=BAD, failed_at=NOON + HOUR), b"\xff\xfe"]
    publish(sqlite, name, bodies)
    return name


def test_a_table(spark: Any, sqlite: str, letters: str, run: Run) -> None:
    done = run("dead-letters", "--url", sqlite, "--queue", letters)
    assert (done.code, done.err) == (0, "")
    assert f"{letters}: 7 dead letters" in done.out
    assert "2026-01-01 13:00" in done.out
    assert backlog(sqlite, letters) == 7


def test_numbers_and_a_page(spark: Any, sqlite: str, letters: str, tmp_path: Path, run: Run) -> None:
    files = ["--json", str(tmp_path / "report.json"), "--html", str(tmp_path / "report.html")]
    assert run("dead-letters", "--url", sqlite, "--queue", letters, "--samples", "2", *files) == (0, "", "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["total"] == 7
    assert report["by_reason"] == {"failed": 5, BAD: 1, "poison": 1}
    assert report["by_job"] == {"urn:shop": 5, "(no URN)": 1, "urn:mail": 1}
    assert report["by_hour"] == {"2026-01-01 12:00": {"failed": 5}, "2026-01-01 13:00": {BAD: 1}}
    latest = [sample["failed_at"] for sample in report["samples"] if sample["reason"] == "failed"]
    assert latest == ["2026-01-01T12:04:00Z", "2026-01-01T12:03:00Z"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_sensitive_fields_are_masked(spark: Any, sqlite: str, letters: str, tmp_path: Path, run: Run) -> None:
    catalog = registry(tmp_path, {"urn:shop": {"properties": {"note": {MARK: "free text"}}}})
    report = tmp_path / "report.json"
    options = ["--option", f"catalog={catalog}", "--json", str(report)]
    assert run("dead-letters", "--url", sqlite, "--queue", letters, *options).code == 0
    data = {sample["reason"]: sample["data"] for sample in json.loads(report.read_text())["samples"]}
    assert json.loads(data["failed"])["note"] == "***"
    assert data["poison"] == "***"


def test_an_empty_queue(spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    assert "0 dead letters" in run("dead-letters", "--url", sqlite, "--queue", queue).out
    page = tmp_path / "report.html"
    assert run("dead-letters", "--url", sqlite, "--queue", queue, "--html", str(page)).code == 0
    assert "0 messages" in page.read_text()
