"""The job bridge: from one broker to another."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Run
from tests.metrics.scrapes import Scrape
from tests.streams import backlog, envelope, publish
from tests.worker.queues import order, taken
from tests.worker.test_redrive import dead

pytestmark = pytest.mark.spark


@pytest.fixture
def batch_lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The lines that a job logs of its batches."""
    logger = logging.getLogger("babelqueue_spark.batches")
    yield lambda: [record.getMessage() for record in caplog.records if record.name == logger.name]
    logger.setLevel(logging.NOTSET)


def test_messages_dead_letters_and_bad_ones(
    spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run, batch_lines: Callable[[], list[str]]
) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    whole = envelope(1, queue, attempts=2).replace(b'"order_id":1', b'"order_id": 1.50')
    letter = dead(order("mails", n=1), "mails")
    publish(sqlite, queue, [whole, b"hello"])
    publish(sqlite, "mails.dlq", [letter])
    arguments = ["bridge", "--from-url", sqlite, "--from-queue", f"{queue},mails.dlq", "--to-url", target]
    arguments += ["--verbose", "--metrics", str(tmp_path / "bridge.prom")]
    done = run(*arguments, "--to-queue", "copies", "--state", str(tmp_path / "state"))
    assert (done.code, done.err) == (0, "")
    told = Scrape((tmp_path / "bridge.prom").read_text())
    lines = [json.loads(line.removeprefix("batch ")) for line in batch_lines()]
    assert sum(line["written"] for line in lines if queue in line["queues"]) == 3
    assert told.value("babelqueue_rows_written_total", query=f"bridge {queue},mails.dlq") == 3
    assert told.value("babelqueue_queue_messages", broker="sql", queue="copies") == 1
    assert told.value("babelqueue_dead_letter_queue_messages", broker="sql", queue="copies.dlq") == 1
    assert "carried 3 messages" in done.out
    assert backlog(sqlite, queue) == backlog(sqlite, "mails.dlq") == 0

    [copy] = taken(target, "copies", 1)
    before, after = json.loads(whole), json.loads(copy)
    assert after == before
    assert b'"order_id": 1.50' in copy
    assert taken(target, "mails.dlq", 1) == [letter]
    [refused] = taken(target, "copies.dlq", 1)
    assert json.loads(refused)["raw"] == "hello"
    assert json.loads(refused)["dead_letter"]["reason"] == "poison"


def test_a_block_counts_only_in_the_dead_letter_queue_that_it_names(
    spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run
) -> None:
    """Whoever sends a message can give it a block that names another team's queue."""
    target = f"sqlite:///{tmp_path}/target.db"
    stray = dead(order(queue, n=1), "billing")
    publish(sqlite, queue, [stray])
    publish(sqlite, f"{queue}.dlq", [letter := dead(order(queue, n=2), queue)])
    arguments = ["--from-url", sqlite, "--from-queue", f"{queue},{queue}.dlq", "--to-url", target]
    assert run("bridge", *arguments, "--state", str(tmp_path / "state")).code == 0
    assert taken(target, queue, 1) == [stray]
    assert taken(target, f"{queue}.dlq", 1) == [letter]
    assert backlog(target, "billing.dlq") == 0


def test_headers_where_both_keep_them_and_queues_of_the_same_name(
    spark: Any, redis_server: Any, queue: str, tmp_path: Path, run: Run
) -> None:
    frame = spark.sql("SELECT 'urn:a' AS job, '{}' AS data, map('traceparent', 'x') AS headers")
    frame.write.format("babelqueue").options(url=redis_server.url, queue=queue).mode("append").save()
    there, back = f"{redis_server.url[:-1]}1", f"sqlite:///{tmp_path}/back.db"
    for number, (source, target) in enumerate([(redis_server.url, there), (there, back)]):
        arguments = ["--from-url", source, "--from-queue", queue, "--to-url", target]
        assert run("bridge", *arguments, "--state", str(tmp_path / f"state{number}")).code == 0
        if target == there:
            rows = spark.read.format("babelqueue").options(url=there, queue=queue).load()
            assert [row.headers for row in rows.collect()] == [{"traceparent": "x"}]
    assert backlog(back, queue) == 1
