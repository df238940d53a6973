"""One partition claimed by two attempts at once, and what becomes of claims that fail."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from babelqueue_spark.journal import Journal
from babelqueue_spark.options import read_options
from babelqueue_spark.source.claiming import deliveries_of
from babelqueue_spark.source.plan import Claim
from tests.streams import backlog, envelope, publish

pytestmark = pytest.mark.server


def attempt(url: str, queue: str, location: str, index: int) -> list[bytes]:
    """One task attempt in a process of its own."""
    options = read_options({"url": url, "queue": queue, "visibilityTimeout": "60s"})
    claim = Claim(batch=1, index=index, queue=queue, messages=500, max_bytes=1 << 20, committed=0)
    with options.binding() as binding:
        batches = deliveries_of(claim, options, Journal(location), binding)
    return [body for batch in batches for body in batch.column("body").to_pylist()]


@pytest.fixture
def location(tmp_path: Path) -> str:
    made = Journal(str(tmp_path / "journal"))
    _ = made.identity
    return made.location


def test_two_attempts_at_once_yield_the_same_rows(url: str, queue: str, location: str) -> None:
    publish(url, queue, (envelope(n) for n in range(1000)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=context) as pool:
        results = list(pool.map(attempt, [url] * 4, [queue] * 4, [location] * 4, [0] * 4))
    assert len(results[0]) == 500
    assert all(result == results[0] for result in results)
    assert backlog(url, queue) == 500


def test_a_repeated_attempt_reads_the_journal_and_not_the_queue(url: str, queue: str, location: str) -> None:
    publish(url, queue, (envelope(n) for n in range(10)))
    first = attempt(url, queue, location, 0)
    publish(url, queue, (envelope(n) for n in range(10, 20)))
    assert attempt(url, queue, location, 0) == first
    assert backlog(url, queue) == 10


def test_claims_go_back_when_the_journal_cannot_be_written(
    url: str, queue: str, location: str, tmp_path: Path
) -> None:
    publish(url, queue, (envelope(n) for n in range(10)))
    (tmp_path / "journal/batches").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="batches"):
        attempt(url, queue, location, 0)
    assert backlog(url, queue) == 10
