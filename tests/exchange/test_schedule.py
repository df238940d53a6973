"""`Schedule.send_at` and `jobs`: rows of a DataFrame become jobs, and leave with all that a message may have."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import JobClaimedError, OptionError
from babelqueue_spark.exchange import Released, Schedule
from tests.exchange.schedules import claim, messages, waiting

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DATA = '{"order_id": 1042, "amount": 1.50}'


@pytest.fixture
def schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    monkeypatch.setenv("SCHEDULE_URL", f"sqlite:///{tmp_path}/schedule.db")
    return Schedule(f"sqlite:///{tmp_path}/schedule.db")


def commands(spark: Any, *job_ids: str | None) -> Any:
    rows = [("urn:babel:orders:expire", DATA, NOON, job_id) for job_id in job_ids]
    return spark.createDataFrame(rows, "job STRING, data STRING, at TIMESTAMP, id STRING").coalesce(1)


def expressions(columns: dict[str, str]) -> dict[str, Any]:
    return {name: F.expr(text) for name, text in columns.items()}


def test_a_message_waits_with_its_trace_and_leaves_with_a_new_id(
    spark: Any, schedule: Schedule, redis_server: Any, queue: str
) -> None:
    columns = {
        "trace_id": F.lit("5f0c1c0e-1d6b-4d52-9d4b-0b8a0c7f6d11"),
        "queue": F.lit(queue),
        "headers": F.expr("map('tenant', 'acme')"),
        "meta": F.expr("named_struct('id', 'mine', 'created_at', 1, 'extra', map('causation', '\"c-1\"'))"),
    }
    assert schedule.send_at(commands(spark, "job-1").withColumns(columns), "at", "id") == ["job-1"]
    [job] = schedule.jobs(spark).collect()
    assert (job.job_id, job.queue, job.data, job.state) == ("job-1", queue, DATA, "waiting")
    assert job.send_at.astimezone(UTC) == NOON
    assert job.trace_id == "5f0c1c0e-1d6b-4d52-9d4b-0b8a0c7f6d11"
    assert schedule.release({"url": redis_server.url}) == Released(1, 0)
    [message] = messages(redis_server.url, queue)
    assert message["trace_id"] == job.trace_id
    assert message["meta"]["causation"] == "c-1"
    assert message["meta"]["id"] != "mine"
    assert message["meta"]["created_at"] > NOON.timestamp() * 1000
    with read_options({"url": redis_server.url, "queue": queue}).binding() as binding:
        [delivery] = [row for batch in binding.browse(queue) for row in batch.to_pylist()]
    assert dict(delivery["headers"]) == {"tenant": "acme"}
    assert DATA.encode() in delivery["body"]


def test_new_ids_are_given_where_no_column_is_named(spark: Any, schedule: Schedule) -> None:
    frame = spark.range(100).selectExpr("'urn:a' AS urn", "named_struct('n', id) AS data").repartition(3)
    soon = datetime.now(UTC) + timedelta(hours=1)
    ids = schedule.send_at(frame, soon)
    assert len({*ids}) == 100
    assert {job["job_id"] for job in waiting(schedule)} == {*ids}
    assert {job["send_at"] for job in waiting(schedule)} == {soon}
    assert schedule.cancel(ids) == 100
    assert schedule.jobs(spark).count() == 0


def test_a_time_of_no_zone_is_this_hosts(spark: Any, schedule: Schedule) -> None:
    schedule.send_at(commands(spark, "a").drop("at", "id"), datetime(2026, 1, 31, 12))
    assert waiting(schedule)[0]["send_at"] == datetime(2026, 1, 31, 12).astimezone(UTC)


def test_what_is_being_published_is_not_replaced(spark: Any, schedule: Schedule) -> None:
    schedule.send_at(commands(spark, "a", "b"), "at", "id")
    claim(schedule, limit=1)
    with pytest.raises(JobClaimedError, match="publishing the jobs 'a', so they were not replaced") as raised:
        schedule.send_at(commands(spark, "a", "b", "c"), "at", F.col("id"))
    assert (raised.value.claimed, sorted(raised.value.scheduled)) == (["a"], ["b", "c"])
    assert [(job["job_id"], job["generation"]) for job in waiting(schedule)] == [("a", 1), ("b", 2), ("c", 1)]


def test_the_url_may_be_a_reference(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text(f"sqlite:///{tmp_path}/schedule.db")
    schedule = Schedule(f"file:{tmp_path}/url")
    schedule.send_at(commands(spark, "a"), "at", "id")
    assert schedule.jobs(spark).count() == 1
    assert os.fspath(tmp_path / "schedule.db") not in repr(schedule)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"delay": "5"}, "column 'delay' cannot be scheduled"),
        ({"nonsense": "5"}, "column 'nonsense' cannot be scheduled"),
    ],
)
def test_columns_that_are_not_of_a_schedule(
    spark: Any, schedule: Schedule, change: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        schedule.send_at(commands(spark, "a").withColumns(expressions(change)), "at", "id")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": "''"}, "row 0 has no job id of 1 to 1024 characters"),
        ({"at": "CAST(NULL AS TIMESTAMP)"}, "row 0 has no time to be sent at"),
        ({"data": "'[1]'"}, "a row cannot be written as an envelope"),
    ],
)
def test_rows_that_cannot_be_scheduled(
    spark: Any, schedule: Schedule, change: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match=text):
        schedule.send_at(commands(spark, "a").withColumns(expressions(change)), "at", "id")
    assert waiting(schedule) == []
