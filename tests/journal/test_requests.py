"""What a query asks of an object store, counted by its server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.errors import JournalError, JournalTakenOverError
from babelqueue_spark.journal import Journal, open_store
from babelqueue_spark.options import read_options
from babelqueue_spark.rows.reading import SCHEMA
from babelqueue_spark.source.pace import Pace
from babelqueue_spark.source.stream import QueueStreamReader
from tests.s3 import S3Server
from tests.streams import envelope, publish

PARTITIONS = 3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class Query:
    """What Spark does with the source, in one process."""

    def __init__(self, server: S3Server, folder: Path, queue: str) -> None:
        self.url = f"sqlite:///{folder}/queue.db"
        given = {
            "url": self.url,
            "queue": queue,
            "journalLocation": f"s3://{server.bucket}/{queue}",
            "numPartitions": str(PARTITIONS),
        }
        self._reader = QueueStreamReader(read_options(given), SCHEMA)
        self._queue = queue
        self.end = self._reader.initialOffset()

    def publish(self, messages: int) -> None:
        publish(self.url, self._queue, (envelope(number, self._queue) for number in range(messages)))

    def trigger(self) -> int:
        """Run a trigger as Spark does; return how many rows it read."""
        start, self.end = self.end, self._reader.latestOffset(self.end)
        if self.end == start:
            return 0
        self._reader.commit(start)
        self.partitions = self._reader.partitions(start, self.end)
        return sum(map(self.read, self.partitions))

    def read(self, partition: Any) -> int:
        return sum(batch.num_rows for batch in self._reader.read(partition))


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
    open_store(journal.location).create("commits/0000000003", b'{"cleaned":3,"lost":{}}')
    journal.check_owner()
    assert (journal.state().committed, journal.state().cleaned) == (3, 3)


@pytest.mark.parametrize(("messages", "partitions"), [(10, 1), (PARTITIONS * 1000, PARTITIONS)])
def test_a_batch_costs_four_requests_and_five_for_each_partition(
    server: S3Server, query: Query, messages: int, partitions: int
) -> None:
    """The fifth is for brokers that do not say which deliveries are the first, such as SQL and Redis."""
    query.publish(messages)
    server.requests.clear()
    assert query.trigger() == messages
    assert server.requests == {
        # owner, commits and sizes; what may be redelivered, and whether the batch was cleaned meanwhile
        "LIST": 1 + 2 * partitions,
        "GET": partitions,  # a segment that an earlier attempt may have written
        "PUT": 2 + 2 * partitions,  # commit and plan; segment and acknowledge record
        "POST": 1,  # the segments of the batch before
    }


def test_an_idle_poll_costs_one_request_and_there_are_sixty_a_minute_at_most(
    server: S3Server, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [started := time.monotonic()]
    monkeypatch.setattr("babelqueue_spark.source.pace.time.monotonic", lambda: now[0])
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
