"""Releases of a schedule: what is due is published in order, and dropped; two at once; what cannot be published."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from babelqueue_spark.errors import BrokerUnreachableError, OptionError, QueuesFailedError
from babelqueue_spark.exchange import Outbox, Released, Schedule
from babelqueue_spark.exchange.schedule_rows import Job
from babelqueue_spark.testing import eventually
from babelqueue_spark.testing.steps import in_processes
from tests.brokers import url_of
from tests.exchange.schedules import (
    SECOND,
    claim,
    may_use,
    messages,
    microseconds,
    numbers_in,
    release_until_empty,
    store,
    table_of,
    waiting,
)
from tests.streams import backlog, envelope
from tests.worker.queues import taken

DATABASES = ["sqlite", "postgresql", "mariadb"]
NOBODY = "redis://127.0.0.1:1"


@pytest.fixture
def schedule(request: pytest.FixtureRequest, tmp_path: Path) -> Schedule:
    """One in a file, or in the database that a parameter names."""
    database = getattr(request, "param", "sqlite")
    return Schedule(url_of(database, request, tmp_path), table=f"schedule_{uuid.uuid4().hex[:8]}")


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of("sqlite", request, tmp_path)


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_what_is_due_is_published_oldest_first_and_dropped(
    schedule: Schedule, redis_server: Any, queue: str
) -> None:
    store(schedule, [7, 3, 5, 1])
    store(schedule, [9], due_in=3600)
    before = datetime.now(UTC)
    assert schedule.release({"url": redis_server.url, "queue": queue}) == Released(4, 0)
    found = messages(redis_server.url, queue)
    assert [message["data"]["order_id"] for message in found] == [1, 3, 5, 7]
    assert [row["job_id"] for row in waiting(schedule)] == ["job-9"]
    created = [datetime.fromtimestamp(message["meta"]["created_at"] / 1000, UTC) for message in found]
    assert all(abs(moment - before) < timedelta(seconds=30) for moment in created)
    assert {message["meta"]["queue"] for message in found} == {queue}
    assert schedule.release({"url": redis_server.url, "queue": queue}) == Released(0, 0)


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_a_job_with_an_id_that_is_there_replaces_it(schedule: Schedule, sqlite: str, queue: str) -> None:
    store(schedule, [1], due_in=3600)
    [first] = waiting(schedule)
    store(schedule, [1, 2])
    assert [(row["job_id"], row["generation"]) for row in waiting(schedule)] == [("job-1", 2), ("job-2", 1)]
    assert waiting(schedule)[0]["scheduled_at"] == first["scheduled_at"]
    assert schedule.release({"url": sqlite, "queue": queue}) == Released(2, 0)
    assert numbers_in(sqlite, queue) == [1, 2]


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_what_a_release_has_claimed_is_neither_replaced_nor_cancelled(
    schedule: Schedule, sqlite: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    store(schedule, [1, 2, 3])
    claim(schedule, limit=2)
    assert store(schedule, [1, 3, 4]) == {"job-1"}
    assert schedule.cancel(["job-1", "job-3", "job-4", "unknown"]) == 2
    assert "a release is publishing the jobs 'job-1', so they were not cancelled" in caplog.text
    assert [(row["job_id"], row["state"]) for row in waiting(schedule)] == [
        ("job-1", "claimed"),
        ("job-2", "claimed"),
    ]


def test_each_time_and_each_generation_has_a_message_id_of_its_own(
    schedule: Schedule, sqlite: str, queue: str
) -> None:
    for _ in range(2):
        store(schedule, [1])
        schedule.release({"url": sqlite, "queue": queue})
    store(schedule, [1])
    store(schedule, [1])
    schedule.release({"url": sqlite, "queue": queue})
    assert len({message["meta"]["id"] for message in messages(sqlite, queue)}) == 3


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_two_releases_at_once_publish_each_job_once(
    schedule: Schedule, redis_server: Any, queue: str
) -> None:
    store(schedule, range(5_000))
    options = {"url": redis_server.url, "queue": queue}
    released = in_processes(2, release_until_empty, schedule, options)
    assert sum(released) == 5_000
    assert sorted(numbers_in(redis_server.url, queue)) == [*range(5_000)]
    assert waiting(schedule) == []


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_jobs_are_replaced_while_releases_claim_them(
    schedule: Schedule, redis_server: Any, queue: str
) -> None:
    """What is refused goes out as it was, all else as it is now: also as it was, if that had gone before."""
    numbers, later = range(200), f"{queue}-later"
    options = {"url": redis_server.url, "queue": queue}
    store(schedule, numbers)

    def release() -> None:
        for _ in range(len(numbers) // 20):
            schedule.release(options, limit=20)

    with ThreadPoolExecutor() as pool:
        releases = [pool.submit(release) for _ in range(2)]
        refused = {job for number in reversed(numbers) for job in store(schedule, [number], queues=[later])}
        for each in releases:
            each.result()
    schedule.release(options)
    before, after = Counter(numbers_in(redis_server.url, queue)), Counter(numbers_in(redis_server.url, later))
    assert waiting(schedule) == []
    assert {*before.values(), *after.values()} == {1}
    assert {f"job-{number}" for number in numbers if number not in after} == refused
    assert refused <= {f"job-{number}" for number in before}


def test_a_limit_and_a_time_bound_a_release(schedule: Schedule, sqlite: str, queue: str) -> None:
    store(schedule, range(10))
    store(schedule, [10], due_in=600)
    options = {"url": sqlite, "queue": queue}
    assert schedule.release(options, limit=3) == Released(3, 0)
    assert numbers_in(sqlite, queue) == [0, 1, 2]
    soon = datetime.now(UTC) + timedelta(minutes=20)
    assert schedule.release(options, until=soon) == Released(8, 0)
    assert numbers_in(sqlite, queue) == [*range(11)]
    with pytest.raises(OptionError, match="limit takes a number of at least 1"):
        schedule.release(options, limit=0)
    for ahead in (-1, 1e300):
        with pytest.raises(OptionError, match="ahead takes a number of seconds"):
            schedule.release(options, ahead=ahead)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), 1e300, "120"])
def test_a_lease_is_a_number_of_seconds(lease: Any) -> None:
    for kind in (Schedule, Outbox):
        with pytest.raises(OptionError, match="lease takes a number of seconds from"):
            kind("sqlite:////tmp/none.db", lease=lease)


def test_arguments_of_another_type_are_refused(schedule: Schedule, sqlite: str) -> None:
    options = {"url": sqlite, "queue": "orders"}
    with pytest.raises(OptionError, match="until takes a datetime, not '2026-01-01'"):
        schedule.release(options, until="2026-01-01")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="limit takes a number of at least 1, not 2"):
        schedule.release(options, limit=2.0)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="cancel takes a list of ids, not the text 'job-1'"):
        schedule.cancel("job-1")


def test_a_queue_that_is_closed_to_the_user_stops_no_other(
    schedule: Schedule, redis_server: Any, queue: str
) -> None:
    closed = f"{queue}-closed"
    store(schedule, range(4), queues=[closed, queue])
    failure = pytest.raises(QueuesFailedError, match="extend its ACL")
    with may_use(redis_server, queue) as url, failure as raised:
        schedule.release({"url": url})
    assert ([*raised.value.failed], raised.value.done) == ([closed], Released(2, 0))
    assert "the others have their messages: 2 were published" in raised.value.text
    assert numbers_in(redis_server.url, queue) == [1, 3]
    assert [row["state"] for row in waiting(schedule)] == ["claimed"] * 2
    assert schedule.release({"url": redis_server.url}) == Released(2, 0)
    assert numbers_in(redis_server.url, closed) == [0, 2]


def test_a_name_that_rabbitmq_keeps_for_itself_stops_no_other(
    schedule: Schedule, rabbitmq_server: Any, queue: str
) -> None:
    store(schedule, range(4), queues=["amq.orders", queue])
    with pytest.raises(QueuesFailedError) as raised:
        schedule.release({"url": rabbitmq_server.url})
    assert [*raised.value.failed] == ["amq.orders"]
    assert numbers_in(rabbitmq_server.url, queue) == [1, 3]


def test_the_error_of_a_job_names_it(schedule: Schedule) -> None:
    store(schedule, [7, 8], queues=["orders:delayed"])
    assert schedule.release({"url": NOBODY}) == Released(0, 2)
    errors = [row["error"] for row in waiting(schedule)]
    assert [error.partition(": ")[0] for error in errors] == [
        "job 'job-7' cannot be published",
        "job 'job-8' cannot be published",
    ]


def test_the_broker_delays_the_last_seconds(schedule: Schedule, sqlite: str, queue: str) -> None:
    store(schedule, [1])
    due = microseconds() + 5 * SECOND
    store(schedule, [2], due_in=5)
    store(schedule, [3], due_in=600)
    assert schedule.release({"url": sqlite, "queue": queue}, ahead=60) == Released(2, 0)
    assert [row["job_id"] for row in waiting(schedule)] == ["job-3"]
    assert 1 in numbers_in(sqlite, queue)
    eventually(lambda: numbers_in(sqlite, queue) == [1, 2])
    assert microseconds() >= due


def test_what_the_broker_cannot_delay_waits_in_the_schedule(
    schedule: Schedule, kafka_server: Any, queue: str
) -> None:
    store(schedule, [2], due_in=20)
    options = {"url": kafka_server.url, "queue": queue}
    assert schedule.release(options, ahead=60) == Released(0, 0)
    assert [row["state"] for row in waiting(schedule)] == ["waiting"]


def test_sqs_delays_up_to_900_seconds_and_its_fifo_queues_not_at_all(
    schedule: Schedule, elasticmq_server: Any, queue: str
) -> None:
    fifo = f"{queue}.fifo"
    store(schedule, [1], due_in=600)
    store(schedule, [2], due_in=1_000)
    store(schedule, [3], queues=[fifo], due_in=600)
    store(schedule, [4], queues=[fifo])
    options = {"url": elasticmq_server.url, "queue": queue}
    assert schedule.release(options, ahead=3_600) == Released(2, 0)
    assert {row["job_id"] for row in waiting(schedule)} == {"job-2", "job-3"}
    [body] = taken(elasticmq_server.url, fifo, 1)
    assert json.loads(body)["data"]["order_id"] == 4
    for name in (fifo, queue):
        assert backlog(elasticmq_server.url, name) == 0


@pytest.mark.parametrize("schedule", DATABASES, indirect=True)
def test_jobs_that_no_broker_delays_stand_in_no_others_way(schedule: Schedule) -> None:
    """More of them than a chunk holds, and all before what can be delayed."""
    store(schedule, range(1_500), queues=["orders.fifo"], due_in=20)
    store(schedule, [2_000], queues=["mails"], due_in=40)
    store(schedule, [2_001], due_in=40)
    store(schedule, [2_002], queues=["mails"], due_in=50)
    longest = {"orders.fifo": 0, "mails": 45_000_000, None: 900_000_000}
    asked = {"until": None, "ahead": 60_000_000, "limit": 1_000, "longest": longest.__getitem__}
    with closing(table_of(schedule)) as table:
        chunk = table.claim("early", **asked)
        assert chunk is not None
        assert [job.job_id for job in table.jobs_of(chunk)] == ["job-2000", "job-2001"]
        assert table.claim("early", **asked) is None


def test_a_message_that_names_no_queue_fails_and_stays(schedule: Schedule, sqlite: str) -> None:
    store(schedule, [0, 2])
    store(schedule, [1, 3], queues=["", "orders"])
    assert schedule.release({"url": sqlite}) == Released(2, 2)
    assert numbers_in(sqlite, "orders") == [1, 3]
    assert [(row["job_id"], row["state"]) for row in waiting(schedule)] == [
        ("job-0", "failed"),
        ("job-2", "failed"),
    ]
    assert "names no queue" in waiting(schedule)[0]["error"]
    assert schedule.release({"url": sqlite, "queue": "orders"}) == Released(0, 0)
    store(schedule, [0])
    assert schedule.release({"url": sqlite, "queue": "orders"}) == Released(1, 0)
    assert schedule.cancel(["job-2"]) == 1


def test_a_broker_that_is_away_leaves_everything_to_the_next_release(
    schedule: Schedule, sqlite: str, queue: str
) -> None:
    store(schedule, range(5))
    with pytest.raises(BrokerUnreachableError):
        schedule.release({"url": NOBODY, "queue": queue})
    assert len(waiting(schedule)) == 5
    assert schedule.release({"url": sqlite, "queue": queue}) == Released(5, 0)
    assert numbers_in(sqlite, queue) == [*range(5)]


def test_a_message_that_is_too_large_fails_alone(schedule: Schedule, kafka_server: Any, queue: str) -> None:
    store(schedule, [1, 2, 3])
    too_large = Job(
        job_id="large",
        due_at=0,
        queue=None,
        body=envelope(9, data={"text": "x" * 3_000_000}),
        headers=None,
        key=None,
    )
    with closing(table_of(schedule)) as table:
        table.store([too_large])
    assert schedule.release({"url": kafka_server.url, "queue": queue}) == Released(3, 1)
    assert sorted(numbers_in(kafka_server.url, queue)) == [1, 2, 3]
    assert [(row["job_id"], row["state"]) for row in waiting(schedule)] == [("large", "failed")]


def test_a_queue_that_takes_nothing_fails_alone(
    schedule: Schedule, redis_server: Any, rabbitmq_server: Any, queue: str
) -> None:
    taken_name = f"{queue}-taken"
    with Redis.from_url(redis_server.url) as client:
        client.set(taken_name, "no list")
    for url, bad in ((redis_server.url, [taken_name]), (rabbitmq_server.url, ["q" * 300, "line\nbreak"])):
        store(schedule, range(len(bad)), queues=bad)
        store(schedule, [7, 8], queues=[queue])
        assert schedule.release({"url": url}) == Released(2, len(bad))
        assert sorted(numbers_in(url, queue)) == [7, 8]
        left = waiting(schedule)
        assert {row["state"] for row in left} == {"failed"}
        assert schedule.cancel([row["job_id"] for row in left]) == len(bad)


def test_headers_fail_where_the_broker_keeps_none(schedule: Schedule, sqlite: str, queue: str) -> None:
    store(schedule, [1, 2])
    with_headers = Job(
        job_id="headers", due_at=0, queue=None, body=envelope(9), headers=b'{"tenant":"acme"}', key=None
    )
    with closing(table_of(schedule)) as table:
        table.store([with_headers])
    assert schedule.release({"url": sqlite, "queue": queue}) == Released(2, 1)
    assert numbers_in(sqlite, queue) == [1, 2]
    assert "keeps no headers" in waiting(schedule)[0]["error"]
