"""What is due in a schedule, whatever waits there: a hundred of a million jobs, and of ten thousand."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from babelqueue_spark.exchange import Schedule
from babelqueue_spark.exchange.schedule_rows import Job
from babelqueue_spark.exchange.schedule_table import STORE_ROWS, ScheduleTable
from bench.redis import body
from bench.table import Row, in_turns, row
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer

FEW, MANY = 10_000, 1_000_000
DUE = 100
ROUNDS = 11
HOUR = 3_600_000_000


def rows() -> list[Row]:
    """A row a database: jobs a second, of a hundred due ones."""
    with tempfile.TemporaryDirectory() as folder:
        target = f"sqlite:///{folder}/queue.db"
        measured = [of_one("SQLite", lambda name: Schedule(f"sqlite:///{folder}/{name}.db"), target)]
        for title, server in (("PostgreSQL", PostgresServer()), ("MariaDB", MariaDbServer())):
            with server:
                measured.append(of_one(title, lambda name: Schedule(server.url, name), target))  # noqa: B023
    return measured


def of_one(title: str, schedule: Callable[[str], Schedule], target: str) -> Row:
    """The row of a database, with a schedule of many jobs and one of few."""
    schedules = {"many": filled(schedule("many"), MANY), "few": filled(schedule("few"), FEW)}
    for each in schedules.values():
        released(each, target)  # warm
    found = in_turns(
        {
            name: lambda each=each: released(each, target)  # type: ignore[misc]
            for name, each in schedules.items()
        },
        rounds=ROUNDS,
    )
    work = f"release {DUE} due of {MANY:,} scheduled, {title}"
    return row(work, found["many"], f"the same, of {FEW:,}", found["few"], 0.8)


def filled(schedule: Schedule, count: int) -> Schedule:
    """A schedule whose jobs are due in more than an hour."""
    store(schedule, "later", count, time.time_ns() // 1000 + HOUR)
    return schedule


def store(schedule: Schedule, name: str, count: int, due_at: int) -> None:
    """Store jobs that are due one microsecond after the other."""
    with closing(ScheduleTable(schedule.url, schedule.table, schedule.lease)) as table:
        for first in range(0, count, STORE_ROWS):
            numbers = range(first, min(count, first + STORE_ROWS))
            table.store([*jobs(name, numbers, due_at)])


def jobs(name: str, numbers: range, due_at: int) -> Iterator[Job]:
    """Jobs of these numbers."""
    for number in numbers:
        yield Job(
            job_id=f"{name}-{number}",
            due_at=due_at + number,
            queue="bench",
            body=body(number),
            headers=None,
            key=None,
        )


def released(schedule: Schedule, target: str) -> float:
    """Jobs a second of a release that finds a hundred due."""
    store(schedule, "now", DUE, time.time_ns() // 1000 - HOUR)
    started = time.perf_counter()
    done = schedule.release({"url": target})
    taken = time.perf_counter() - started
    assert done.messages == DUE
    return DUE / taken
