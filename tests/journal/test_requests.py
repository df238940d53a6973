"""What a query asks of an object store, counted by its server."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.source import claiming
from babelqueue_spark.connector.source.pace import Pace
from babelqueue_spark.connector.source.stream import QueueStreamReader
from babelqueue_spark.errors import JournalError, JournalTakenOverError
from babelqueue_spark.journal import Journal
from babelqueue_spark.storage import open_store
from babelqueue_spark.testing import eventually, take
from tests.s3 import S3Server
from tests.streams import backlog, envelope, in_time, publish

PARTITIONS = 3
SECONDS = 8
"""How long a claim lasts where it is to lapse: longer than clocks may differ."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class Query:
    """What Spark does with the source, in one process."""

    def __init__(self, server: S3Server, folder: Path, queue: str, **options: str) -> None:
        self.url = f"sqlite:///{folder}/queue.db"
        given = {
            "url": self.url,
            "queue": queue,
            "journalLocation": f"s3://{server.bucket}/{queue}",
            "numPartitions": str(PARTITIONS),
            **options,
        }
        self._reader = QueueStreamReader(read_options(given), SCHEMA)
        self._queue = queue
        self.partitions: list[Any] = []
        self.end = self._reader.initialOffset()

    def publish(self, messages: int) -> None:
        publish(self.url, self._queue, (envelope(number, self._queue) for number in range(messages)))

    def plan(self) -> list[Any]:
        """Begin a trigger as Spark does; return what its tasks are to read."""
        start, self.end = self.end, self._reader.latestOffset(self.end)
        if self.end == start:
            return []
        self._reader.commit(start)
        return list(self._reader.partitions(start, self.end))

    def take_elsewhere(self, messages: int) -> None:
        """Let another program read so many messages."""
        with read_options({"url": self.url, "queue": self._queue}).binding() as other:
            other.acknowledge(self._queue, take(other, self._queue, messages))

    def waiting(self) -> int:
        return backlog(self.url, self._queue, visibilityTimeout=f"{SECONDS}s")

    def trigger(self) -> int:
        """Run a trigger as Spark does; return how many rows it read."""
        partitions = self.plan()
        self.partitions = partitions or self.partitions
        return sum(map(self.read, partitions))

    def tally(self) -> dict[str, int]:
        """What the source reports of its journal."""
        return dict(self._reader.reportLatestOffset()["tally"])

    def read(self, partition: Any) -> int:
        return int(in_time(lambda: sum(batch.num_rows for batch in self._reader.read(partition)), SECONDS))


@pytest.fixture
def query(server: S3Server, tmp_path: Path, queue: str) -> Query:
    made = Query(server, tmp_path, queue)
    made.publish(10)
    assert made.trigger() == 10
    return made


def test_a_late_attempt_at_a_cleaned_batch_journals_and_takes_nothing(
    server: S3Server, query: Query, queue: str
) -> None:
    """No folder is missing on an object store: only the commit tells it that the batch is over."""
    [late] = query.partitions
    query.publish(10)
    assert query.trigger() == 10
    query.publish(5)
    with pytest.raises(JournalError, match="came too late"):
        query.read(late)
    journal = open_store(f"s3://{server.bucket}/{queue}")
    assert journal.names("batches/0000000001") == []
    assert query.trigger() == 5


def test_a_commit_that_was_under_way_at_the_take_over_is_not_taken_back(server: S3Server, queue: str) -> None:
    journal = Journal(f"s3://{server.bucket}/{queue}")
    _ = journal.id
    journal.take_over()
    open_store(journal.location).create("commits/0000000003", b'{"cleaned":3,"unacknowledged":{}}')
    journal.check_owner()
    assert (journal.state().committed, journal.state().cleaned) == (3, 3)


@pytest.mark.parametrize(("messages", "partitions"), [(10, 1), (PARTITIONS * 1000, PARTITIONS)])
def test_a_batch_costs_four_requests_and_four_for_each_partition(
    server: S3Server, query: Query, messages: int, partitions: int
) -> None:
    query.publish(messages)
    server.requests.clear()
    assert query.trigger() == messages
    assert server.requests == {
        "LIST": 1 + partitions,  # owner, commits and sizes; whether the batch was cleaned meanwhile
        "GET": partitions,  # a segment that an earlier attempt may have written
        "PUT": 2 + 2 * partitions,  # commit and plan; segment and acknowledge record
        "POST": 1,  # the segments of the batch before
    }


def test_the_tally_counts_segments_and_what_retention_keeps(
    server: S3Server, tmp_path: Path, queue: str
) -> None:
    query = Query(server, tmp_path, queue, journalRetention="1h")
    for messages in (10, 2000, 10):
        query.publish(messages)
        assert query.trigger() == messages
    first = query.tally()
    assert (first["segments"], first["held_segments"]) == (3, 3)
    assert first["bytes"] == first["held_bytes"] > 0
    after = Query(server, tmp_path, queue, journalRetention="1h")
    assert after.trigger() == 10
    after.publish(1)
    assert after.trigger() == 1
    assert (after.tally()["segments"], after.tally()["held_segments"]) == (1, 4)


class TestRedeliveries:
    """The fifth request of a partition: what may be delivered again, where the broker does not say it."""

    @pytest.fixture
    def query(self, server: S3Server, tmp_path: Path, queue: str) -> Query:
        return Query(server, tmp_path, queue, visibilityTimeout=f"{SECONDS}s")

    def test_of_a_claim_of_the_same_batch(self, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        query.publish(PARTITIONS * 1000)
        first, *others = query.plan()
        query.take_elsewhere((PARTITIONS - 1) * 1000)
        with monkeypatch.context() as killed:
            killed.setattr(claiming, "_acknowledge", _die)
            with pytest.raises(ZeroDivisionError):
                query.read(first)
        eventually(lambda: query.waiting() == 1000)
        assert [query.read(partition) for partition in (*others, first)] == [0, 0, 1000]

    def test_of_a_message_that_a_batch_left(self, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as lapsed:

            def acknowledge(binding: SqlBinding, queue: str, claimed: pa.RecordBatch) -> pa.BooleanArray:
                lapsed.setattr(claiming, "time", SimpleNamespace(monotonic=lambda: math.inf))
                binding.release(queue, claimed)
                return pa.repeat(pa.scalar(False), claimed.num_rows)

            lapsed.setattr(SqlBinding, "acknowledge", acknowledge)
            query.publish(10)
            assert query.trigger() == 10
        assert query.waiting() == 10
        assert query.trigger() == 0
        assert query.waiting() == 0
        query.publish(1)
        assert query.trigger() == 1
        assert (query.tally()["unacknowledged"], query.tally()["redelivered"]) == (10, 10)


def _die(*_: object) -> None:
    raise ZeroDivisionError


def test_an_idle_poll_costs_one_request_and_there_are_sixty_a_minute_at_most(
    server: S3Server, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [started := time.monotonic()]
    monkeypatch.setattr("babelqueue_spark.connector.source.pace.time.monotonic", lambda: now[0])
    query.trigger()
    while now[0] < started + 10:
        now[0] += 0.05
        query.trigger()
    server.requests.clear()
    while now[0] < started + 70:
        now[0] += 0.05
        assert query.trigger() == 0
    assert server.requests.keys() == {"LIST"}
    assert 50 <= server.requests["LIST"] <= 60


def test_an_idle_query_notices_that_another_took_its_journal_over(
    server: S3Server, query: Query, tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "resting", lambda self: False)
    query.trigger()
    query.trigger()
    second = Query(server, tmp_path, queue)
    second.publish(5)
    assert second.trigger() >= 5
    with pytest.raises(JournalTakenOverError, match="taken over by another query"):
        query.trigger()


def test_a_query_does_not_list_the_files_of_others(server: S3Server, queue: str) -> None:
    store = open_store(f"s3://{server.bucket}/{queue}")
    journal = Journal(f"s3://{server.bucket}/{queue}")
    journal.take_over()
    journal.record_plan(1, {})
    journal.commit(1)
    journal.record_plan(2, {})
    with ThreadPoolExecutor(8) as pool:
        theirs = [f"{folder}/{number}" for folder in ("checkpoint", "table") for number in range(1100)]
        list(pool.map(lambda name: store.create(name, b"x"), theirs))
    server.requests.clear()
    seen = journal.check_owner()
    assert server.requests["LIST"] == 2
    assert (list(seen.sizes("commits")), list(seen.sizes("batches/0000000002"))) == (
        ["0000000001"],
        ["plan.json"],
    )
