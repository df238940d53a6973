"""What the live page knows of running queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from babelqueue_spark.jobs.page.queries import JournalWatch, MetricsWatch
from babelqueue_spark.journal import Journal
from tests.live.conftest import Open
from tests.live.pages import Exporter, running
from tests.streams import drain, envelope, publish


def test_batch_times_from_metrics(exporter: Exporter) -> None:
    watch = MetricsWatch(exporter.url)
    assert watch.poll() == {"source": exporter.url, "error": None, "queries": []}
    exporter.batch(2.0, 100, addBatch=1.5)
    exporter.batch(4.0, 100, addBatch=2.5)
    [query] = watch.poll()["queries"]
    assert (query["name"], query["seconds"], query["phases"], query["batches"]) == (
        "orders",
        3.0,
        {"addBatch": 2.0},
        2,
    )
    exporter.batch(1.0, 50, addBatch=0.5)
    assert watch.poll()["queries"][0]["points"] == [3.0, 1.0]
    [query] = watch.poll()["queries"]
    assert query["points"] == [3.0, 1.0]
    assert query["rate"] > 0


def test_metrics_of_a_process_that_was_started_again(exporter: Exporter) -> None:
    watch = MetricsWatch(exporter.url)
    exporter.batch(2.0, 100)
    exporter.batch(2.0, 100)
    assert watch.poll()["queries"][0]["seconds"] == 2.0
    exporter.seconds.clear()
    exporter.messages.clear()
    exporter.batch(0.5, 10)
    [query] = watch.poll()["queries"]
    assert (query["points"], query["rate"]) == ([2.0, 0.5], None)


def test_a_query_that_has_ended(exporter: Exporter) -> None:
    watch = MetricsWatch(exporter.url)
    exporter.batch(2.0, 100)
    assert not watch.poll()["queries"][0]["has_ended"]
    exporter.active.labels("orders").set(0)
    [query] = watch.poll()["queries"]
    assert query["has_ended"]
    assert query["last_batch"] > 1_700_000_000


def test_metrics_that_are_away_are_an_error_until_they_are_back(exporter: Exporter) -> None:
    exporter.batch(2.0, 100)
    away = MetricsWatch("http://127.0.0.1:1/metrics").poll()
    assert away["queries"] == []
    assert away["error"].startswith("http://127.0.0.1:1/metrics gives no metrics: ")
    assert MetricsWatch(exporter.url).poll()["error"] is None


def test_a_page_that_is_no_metrics(tmp_path: Path) -> None:
    with running(f"sqlite:///{tmp_path}/queue.db", "orders") as live:
        found = MetricsWatch(live.url.partition("#")[0]).poll()
    assert found["queries"] == []
    assert len(found["error"].splitlines()) == 1


@pytest.mark.spark
def test_the_journal_of_a_stream(spark: Any, queue: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, queue, [envelope(n, queue) for n in range(10)])
    drain(spark, url, queue, tmp_path, journalRetention="1h")
    seen = JournalWatch(str(tmp_path / "journal"), {}).poll()
    assert (seen["error"], seen["batch"], seen["segments"]) == (None, 1, 1)
    assert seen["bytes"] > 10
    assert seen["planned_at"] > 1_700_000_000


def test_no_journal_is_an_error_and_stays_none(tmp_path: Path) -> None:
    seen = JournalWatch(str(tmp_path / "journal"), {}).poll()
    assert "is not there" in seen["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_journal_whose_file_is_damaged(tmp_path: Path) -> None:
    assert Journal(str(tmp_path)).id
    (tmp_path / "owner.json").write_text('{"owner"}')
    assert "owner.json is no JSON" in JournalWatch(str(tmp_path), {}).poll()["error"]


def test_queries_on_the_page(exporter: Exporter, tmp_path: Path, tab: Open) -> None:
    exporter.batch(1.0, 100)
    url = f"sqlite:///{tmp_path}/queue.db"
    missing = str(tmp_path / "journal")
    with running(url, "orders", metrics=[exporter.url], journals=[missing]) as live:
        page = tab(live.url)
        queries = page.locator("#queries > li")
        expect(queries).to_have_count(2)
        first, second = queries.all()
        expect(first).to_contain_text(exporter.url)
        expect(first.locator(".number")).to_have_text("1 s")
        exporter.batch(2.5, 100, addBatch=2.25)
        expect(first.locator(".number")).to_have_text("2.5 s")
        expect(first).to_contain_text("addBatch2.3 s")
        expect(second).to_contain_text("[BABELQUEUE_JOURNAL_MISSING]")
