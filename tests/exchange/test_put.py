"""What workers put into a schedule: once under a key, in order, and behind a release that is at the same job."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.errors import JobClaimedError
from babelqueue_spark.exchange import Schedule
from babelqueue_spark.testing.steps import in_processes
from babelqueue_spark.worker.decisions import OUTGOING_MESSAGES
from tests.brokers import url_of
from tests.exchange.schedules import SECOND, claim, messages, microseconds, store, waiting
from tests.streams import envelope

DATABASES = ["sqlite", "postgresql", "mariadb"]
LATER = microseconds() + 3600 * SECOND


@pytest.fixture
def schedule(request: pytest.FixtureRequest, tmp_path: Path) -> Schedule:
    """One in a file, or in the database that a parameter names."""
    database = getattr(request, "param", "sqlite")
    return Schedule(url_of(database, request, tmp_path), table=f"schedule_{uuid.uuid4().hex[:8]}", lease=2)


def changes(*given: tuple[str, int | None]) -> pa.RecordBatch:
    """Jobs that are stored with a number, or cancelled where it is None."""
    rows: list[dict[str, Any]] = [
        {"job_id": name}
        if number is None
        else {"job_id": name, "send_at": LATER + number, "body": envelope(number)}
        for name, number in given
    ]
    return pa.RecordBatch.from_pylist(rows, OUTGOING_MESSAGES)


def found(schedule: Schedule) -> dict[str, tuple[int, int]]:
    """Job → the number that it was stored with last, and its generation."""
    return {
        job["job_id"]: (json.loads(job["data"])["order_id"], job["generation"]) for job in waiting(schedule)
    }


def put(schedule: Schedule, key: str, given: Sequence[tuple[str, int | None]]) -> None:
    schedule.put(changes(*given), key)


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_what_was_put_is_put_once(schedule: Schedule) -> None:
    put(schedule, "first", [("a", 1), ("b", 2)])
    assert found(schedule) == {"a": (1, 1), "b": (2, 1)}
    put(schedule, "second", [("a", 3), ("b", None)])
    put(schedule, "first", [("a", 1), ("b", 2)])
    assert found(schedule) == {"a": (3, 2)}
    [job] = waiting(schedule)
    assert job["send_at"] == datetime.fromtimestamp((LATER + 3) / SECOND, UTC)


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_processes_put_the_same_once_between_them(schedule: Schedule) -> None:
    in_processes(3, put, schedule, "key", [("a", 1), ("b", 2)])
    assert found(schedule) == {"a": (1, 1), "b": (2, 1)}


def test_of_several_changes_of_a_job_the_last_counts(schedule: Schedule) -> None:
    put(schedule, "key", [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", None), ("d", None), ("d", 5)])
    assert found(schedule) == {"a": (3, 1), "c": (4, 1), "d": (5, 1)}


def test_many_are_put_at_once(schedule: Schedule) -> None:
    put(schedule, "key", [(f"job-{number}", number) for number in range(2_500)])
    put(schedule, "other", [(f"job-{number}", None) for number in range(2_400)])
    assert len(found(schedule)) == 100


def test_what_was_released_in_between_is_not_put_again(schedule: Schedule, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    put(schedule, "key", [("a", 1)])
    released = schedule.release({"url": url, "queue": "q"}, until=datetime(9000, 1, 1, tzinfo=UTC))
    assert released.messages == 1
    put(schedule, "key", [("a", 1)])
    assert found(schedule) == {}
    assert len(messages(url, "q")) == 1


def test_a_job_that_is_published_is_stored_again_behind_it(schedule: Schedule, tmp_path: Path) -> None:
    store(schedule, [1])
    claim(schedule)
    putting = threading.Thread(target=put, args=(schedule, "key", [("job-1", 7), ("b", 2)]))
    putting.start()
    putting.join(0.2)
    assert putting.is_alive()
    assert [job["state"] for job in waiting(schedule)] == ["claimed"]
    url = f"sqlite:///{tmp_path}/queue.db"
    while putting.is_alive():
        schedule.release({"url": url, "queue": "q"})  # once the lease of the dead one is over
        putting.join(0.1)
    assert len(messages(url, "q")) == 1
    assert found(schedule) == {"job-1": (7, 1), "b": (2, 1)}


def test_a_job_that_stays_claimed_is_an_error_and_nothing_is_put(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(schedule, [1])
    claim(schedule)
    monkeypatch.setattr("babelqueue_spark.exchange.schedule._PAUSE", 0)
    with pytest.raises(JobClaimedError, match="publishing the jobs 'job-1', so they were not replaced"):
        put(schedule, "key", [("job-1", 7), ("b", 2)])
    assert [*found(schedule)] == ["job-1"]


def test_a_job_that_is_published_is_not_cancelled(
    schedule: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    store(schedule, [1])
    claim(schedule)
    put(schedule, "key", [("job-1", None), ("b", 2)])
    assert [*found(schedule)] == ["job-1", "b"]
    assert "'job-1', so they were not cancelled" in caplog.text
