"""Prometheus is told what happened: numbers of a real stream and a real worker against what was published."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.metrics import observe
from babelqueue_spark.testing import eventually
from babelqueue_spark.worker import Policy, Worker
from tests.brokers import url_of
from tests.metrics.scrapes import Scrape, scrape
from tests.streams import WAIT, backlog, envelope, publish, run, stream
from tests.worker.handlers import act
from tests.worker.queues import order

SECRET = "body-of-a-message-4711"
QUERY = "orders to worker"


@pytest.fixture(autouse=True)
def idle_at_once(spark: Any) -> Iterator[None]:
    """Spark says ten seconds after the last batch that a query is idle: here, half a second after."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "500")
    yield
    spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def test_a_worker_and_a_stream_against_what_was_published(
    spark: Any,
    url: str,
    queue: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    admission_control: bool,
) -> None:
    good = [order(queue, do="nothing", note=SECRET) for _ in range(20)]
    rejected = [order(queue, urn="urn:babel:orders:cancelled", do="reject") for _ in range(3)]
    answered = [order(queue, do="reply", n=1, queue=f"{queue}.replies") for _ in range(2)]
    failing = [order(queue, do="raise")]
    nonsense = [b'{"job":"' + SECRET.encode() + b' no urn","meta":{}}', SECRET.encode()]
    published = [*good, *rejected, *answered, *failing, *nonsense]
    publish(url, queue, published)
    worker = Worker({"url": url}, state=str(tmp_path / "worker"), policy=Policy(backoff=[3600.0]))
    worker.handler("urn:babel:orders:*")(act)
    options = {"maxMessagesPerTrigger": "10"} if admission_control else {}
    with (
        caplog.at_level(logging.INFO, "babelqueue_spark.batches"),
        observe(spark, "0", queues=[{"url": url, "queue": queue}], every=0.2) as observer,
    ):
        address = observer.address
        assert address is not None
        query = (
            stream(spark, url, queue, tmp_path, **options)
            .writeStream.foreachBatch(worker)
            .queryName(QUERY)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            eventually(lambda: worker.counts.read == len(published), patience=WAIT)
            eventually(
                lambda: scrape(address).value("babelqueue_messages_total", query=QUERY) == len(published)
            )
            eventually(lambda: waits(scrape(address), queue) == {0.0}, patience=WAIT)
            eventually(lambda: dead(scrape(address)) == backlog(url, f"{queue}.dlq"), patience=WAIT)
            assert scrape(address).value("babelqueue_query_active", query=QUERY) == 1
        finally:
            query.stop()
        eventually(lambda: scrape(address).value("babelqueue_query_active", query=QUERY) == 0)
        found = scrape(address)
    dead_letters = len(rejected) + len(nonsense)
    assert backlog(url, f"{queue}.dlq") == dead_letters
    assert dead(found) == dead_letters
    assert by_outcome(found) == {
        ("urn:babel:orders:created", "acked", ""): len(good) + len(answered),
        ("urn:babel:orders:created", "retried", "failed"): 1,
        ("urn:babel:orders:cancelled", "dead_lettered", "bad_order"): len(rejected),
        ("other", "dead_lettered", "unsupported_schema_version"): 1,
        ("", "dead_lettered", "poison"): 1,
    }
    assert found.value("babelqueue_worker_published_total", urn="urn:replies:one") == len(answered)
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert found.value("babelqueue_batch_duration_seconds_count", query=QUERY) >= len(batches)
    assert time.time() - (found.value("babelqueue_last_batch_timestamp_seconds", query=QUERY) or 0) < WAIT
    assert found.value("babelqueue_batch_phase_seconds_total", query=QUERY, phase="addBatch") > 0
    assert found.value("babelqueue_query_failures_total", query=QUERY) == 0
    lines = [json.loads(record.message.removeprefix("batch ")) for record in caplog.records]
    told = [line for line in lines if queue in line["queues"]]  # Spark may still tell of other tests' queries
    assert sum(line["fresh"] for line in told) == len(published)
    assert sum(line["queues"][queue]["planned"] for line in told) == len(published)
    assert told[0]["queues"][queue]["backlog"] == len(published)
    assert {"latestOffset", "addBatch"} <= told[0]["phases"].keys()
    if admission_control:
        assert len(batches) == 3
        assert found.value("babelqueue_redeliveries_total", query=QUERY) == 0
        assert told[1]["before"]["claimed"] == told[1]["before"]["fresh"] == 10
        assert told[1]["before"]["bytes"] > 0
        assert found.value("babelqueue_journal_segments_written_total", query=QUERY) == 2
    for text in (found.text, our_lines(caplog)):
        assert SECRET not in text
        assert "tmp/" not in text


def test_the_age_of_the_oldest_message_grows_and_dead_letters_are_counted(
    spark: Any, url: str, queue: str
) -> None:
    publish(url, queue, [envelope(1), envelope(2)])
    publish(url, f"{queue}.dlq", [envelope(3)])
    with observe(spark, "0", queues=[{"url": url, "queue": queue}], every=0.2) as observer:
        assert observer.address is not None
        address = observer.address
        eventually(lambda: waits(scrape(address), queue) == {2.0}, patience=WAIT)
        eventually(lambda: (age(scrape(address), queue) or 0) >= 1.5, patience=WAIT)
        assert dead(scrape(address)) == 1
        assert (age(scrape(address), queue) or 0) < WAIT


def test_a_query_that_fails_is_counted_and_what_it_says_is_not_told(
    spark: Any, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, queue, [envelope(1)])
    where = tmp_path / "orders.prom"

    def each(batch: Any, number: int) -> None:
        if batch.count() and number:
            raise ValueError(SECRET)

    with observe(spark, str(where)):
        query = (
            stream(spark, url, queue, tmp_path)
            .writeStream.foreachBatch(each)
            .queryName("failing")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        eventually(lambda: any(each["numInputRows"] for each in query.recentProgress), patience=WAIT)
        publish(url, queue, [envelope(2)])
        eventually(lambda: not query.isActive, patience=WAIT)
    found = Scrape(where.read_text())
    assert found.value("babelqueue_query_failures_total", query="failing") == 1
    assert found.value("babelqueue_query_active", query="failing") == 0
    assert SECRET not in found.text + our_lines(caplog)
    assert [path.name for path in tmp_path.glob("orders.prom*")] == ["orders.prom"]


def test_a_progress_is_not_read_field_by_field(
    spark: Any, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field by field, PySpark takes 17 ms of a core for each batch."""
    monkeypatch.delattr("pyspark.sql.streaming.listener.QueryProgressEvent.fromJObject")
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, queue, [envelope(1)])
    with observe(spark, None) as observer:
        run(stream(spark, url, queue, tmp_path), tmp_path, lambda batch, _: batch.count())
    [messages] = [each for each in observer.registry.collect() if each.name == "babelqueue_messages"]
    assert [sample.value for sample in messages.samples if sample.name.endswith("_total")] == [1]


def test_queries_of_others_are_left_alone(spark: Any, tmp_path: Path) -> None:
    with observe(spark, None) as observer:
        frame = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1).load()
        query = run(frame, tmp_path, lambda batch, _: None, once=True)
        query.awaitTermination(WAIT)
    assert [each.samples for each in observer.registry.collect() if each.name == "babelqueue_messages"] == [
        []
    ]


def our_lines(caplog: pytest.LogCaptureFixture) -> str:
    """What the connector has logged on the driver."""
    ours = (record for record in caplog.records if record.name.startswith("babelqueue_spark"))
    return "\n".join(record.getMessage() for record in ours)


def waits(found: Scrape, queue: str) -> set[float]:
    """What a query and a poll say of the messages of a queue."""
    polled = found.all("babelqueue_queue_messages").values()
    by_query = (
        value
        for labels, value in found.all("babelqueue_backlog_messages").items()
        if ("queue", queue) in labels
    )
    return {*polled, *by_query}


def dead(found: Scrape) -> float | None:
    return next(iter(found.all("babelqueue_dead_letter_queue_messages").values()), None)


def age(found: Scrape, queue: str) -> float | None:
    ages = found.all("babelqueue_queue_oldest_message_age_seconds")
    return next((value for labels, value in ages.items() if ("queue", queue) in labels), None)


def by_outcome(found: Scrape) -> Counter[tuple[str, ...]]:
    """(URN, outcome, reason) → messages."""
    samples = found.all("babelqueue_worker_messages_total")
    return Counter(
        {
            tuple(dict(labels)[name] for name in ("urn", "outcome", "reason")): int(count)
            for labels, count in samples.items()
        }
    )
