"""Schedules for tests: jobs stored without Spark, messages read back, releases in processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from multiprocessing import get_context
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.exchange import Schedule
from babelqueue_spark.exchange.schedule_rows import Job
from babelqueue_spark.exchange.schedule_table import STORE_ROWS, ScheduleTable
from tests.streams import envelope

POINTS = ["before the claim", "after the claim", "in mid-publish", "after the publish", "after the drop"]
SECOND = 1_000_000


def table_of(schedule: Schedule) -> ScheduleTable:
    return ScheduleTable(schedule.url, schedule.table, schedule.lease)


def microseconds() -> int:
    return time.time_ns() // 1000


def store(
    schedule: Schedule, numbers: Iterable[int], *, queues: list[str] | None = None, due_in: float = -60
) -> set[str]:
    """A job for each number, due by its number; returns the ids of those that are claimed."""
    first = microseconds() + int(due_in * SECOND)
    jobs = [
        Job(
            job_id=f"job-{number}",
            due_at=first + number,
            queue=queues[number % len(queues)] if queues else None,
            body=envelope(number),
            headers=None,
            key=None,
        )
        for number in numbers
    ]
    claimed: set[str] = set()
    with closing(table_of(schedule)) as table:
        for start in range(0, len(jobs), STORE_ROWS):
            claimed |= table.store(jobs[start : start + STORE_ROWS])
    return claimed


def claim(schedule: Schedule, limit: int = 1_000) -> Any:
    """What a release claims that dies then."""
    with closing(table_of(schedule)) as table:
        return table.claim("dead", until=None, ahead=0, limit=limit, longest=lambda _: 0)


def waiting(schedule: Schedule) -> list[dict[str, Any]]:
    """All jobs that are still there."""
    return [row for batch in schedule.batches() for row in batch.to_pylist()]


def messages(url: str, queue: str, **options: str) -> list[dict[str, Any]]:
    """The envelopes of a queue, in its order."""
    with read_options({"url": url, "queue": queue, **options}).binding() as binding:
        return [json.loads(body) for batch in binding.browse(queue) for body in batch["body"].to_pylist()]


def numbers_in(url: str, *queues: str) -> list[int]:
    return [message["data"]["order_id"] for queue in queues for message in messages(url, queue)]


@contextmanager
def may_use(redis_server: Any, *queues: str) -> Iterator[str]:
    """The URL of a user of Redis who has these queues alone, and what the connector keeps beside them."""
    user = f"user-{queues[0]}"
    with redis_server.client() as client:
        keys = [key for queue in queues for key in (queue, f"{queue}:*", f"babelqueue:*{queue}*")]
        client.acl_setuser(user, enabled=True, passwords=["+s3cret"], keys=keys, categories=["+@all"])
        try:
            yield redis_server.url.replace("://", f"://{user}:s3cret@")
        finally:
            client.acl_deluser(user)


def release_until_empty(schedule: Schedule, options: dict[str, str]) -> int:
    """In a process of its own: how many messages it released."""
    return schedule.release(options).messages


def killed_at(point: str, schedule: Schedule, options: dict[str, str]) -> bool:
    """Run a release in a process of its own that dies at the point; whether it reached it."""
    return killed(_release_and_die, point, schedule, options)


def killed(program: Callable[..., object], *arguments: object) -> bool:
    """Run a program in a process of its own; whether it killed itself."""
    process = get_context("spawn").Process(target=program, args=arguments)
    process.start()
    process.join(60)
    code = process.exitcode
    process.close()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _release_and_die(point: str, schedule: Schedule, options: dict[str, str]) -> None:
    publish = BaseBinding.publish
    published = 0

    def counted(self: BaseBinding, *args: Any, **kwargs: Any) -> int:
        nonlocal published
        if published == 1:
            reached("in mid-publish")
        published += 1
        return publish(self, *args, **kwargs)

    def reached(here: str) -> None:
        if here == point:
            die()

    def around(name: str, before: str, after: str) -> None:
        original = getattr(ScheduleTable, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            reached(before)
            result = original(*args, **kwargs)
            reached(after)
            return result

        setattr(ScheduleTable, name, wrapped)

    around("claim", "before the claim", "after the claim")
    around("finish", "after the publish", "after the drop")
    BaseBinding.publish = counted  # type: ignore[method-assign]
    schedule.release(options)


def refuse_several_and_die_behind_the_third() -> None:
    """Let a broker refuse what goes together, and end this process once it has three messages."""
    publish = BaseBinding.publish
    published = 0

    def refusing(self: BaseBinding, queue: str, messages: pa.RecordBatch, **given: Any) -> int:
        nonlocal published
        if messages.num_rows > 1:
            raise BrokerError("one of them is refused")
        count = publish(self, queue, messages, **given)
        published += 1
        if published == 3:
            die()
        return count

    BaseBinding.publish = refusing  # type: ignore[method-assign,assignment]
