"""Segments that an object store does not write in time: they end before the lease, so nobody reads a message twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.source.claiming import deliveries_of
from babelqueue_spark.connector.source.plan import Claim, Share
from babelqueue_spark.errors import JournalError
from babelqueue_spark.journal import Journal
from babelqueue_spark.testing import eventually
from tests.s3 import S3Server
from tests.streams import backlog, envelope, in_time, publish

SECONDS = 5
BODIES = [envelope(number) for number in range(3)]


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class Batch:
    """A batch of one queue with a journal in a bucket; each partition may read the whole queue."""

    def __init__(self, server: S3Server, folder: Path, queue: str) -> None:
        self.url, self.queue = f"sqlite:///{folder}/queue.db", queue
        publish(self.url, queue, BODIES)
        location = f"s3://{server.bucket}/{queue}"
        given = {"url": self.url, "queue": queue, "journalLocation": location}
        self._options = read_options({**given, "visibilityTimeout": f"{SECONDS}s"})
        self._journal = self._options.journal()
        self._journal.record_plan(1, {})

    def attempt(self, index: int) -> list[bytes]:
        """What an attempt at a partition yields that must succeed."""
        return list(in_time(lambda: self._attempt(index), SECONDS))

    def _attempt(self, index: int) -> list[bytes]:
        claim = Claim(self._journal.id, 1, index, [Share(self.queue, 500, 1 << 20)], 1 << 20, committed=0)
        with self._options.binding() as binding:
            found = deliveries_of(claim, self._options, Journal(self._journal.location), binding)
            return [body for _, batch in found for body in batch["body"].to_pylist()]

    def fail(self, index: int) -> None:
        """Make an attempt that gives up, by the lease: the store's own retries take minutes."""
        started = time.monotonic()
        with pytest.raises(JournalError, match=r"did not write batches/0000000001/00000\.arrow in time"):
            self._attempt(index)
        assert time.monotonic() - started < 10 * SECONDS

    def journalled(self, index: int) -> bool:
        return self._journal.segment(1, index).read() is not None

    def await_lapsed_claims(self) -> None:
        eventually(lambda: self.waiting() == len(BODIES))

    def waiting(self) -> int:
        return backlog(self.url, self.queue, visibilityTimeout=f"{SECONDS}s")


@pytest.fixture
def batch(server: S3Server, tmp_path: Path, queue: str) -> Batch:
    return Batch(server, tmp_path, queue)


def test_a_store_that_is_back_after_the_lease_is_not_sent_the_segment_again(
    server: S3Server, batch: Batch
) -> None:
    server.refuses_segments = True
    batch.fail(0)
    batch.await_lapsed_claims()
    server.refuses_segments = False
    assert batch.attempt(1) == BODIES
    assert not batch.journalled(0)
    assert batch.attempt(0) == []


def test_a_segment_that_was_written_without_an_answer_is_read_by_the_next_attempt(
    server: S3Server, batch: Batch
) -> None:
    with server.holding_a_segment(written=True):
        batch.fail(0)
        assert batch.attempt(0) == BODIES
    assert batch.attempt(1) == []
    assert batch.waiting() == 0


def test_a_segment_that_is_written_after_its_attempt_gave_up_is_read_by_the_next_one(
    server: S3Server, batch: Batch
) -> None:
    with server.holding_a_segment(written=False):
        batch.fail(0)
        assert not batch.journalled(0)
    assert batch.journalled(0)
    assert batch.attempt(0) == BODIES
    assert batch.attempt(1) == []


def test_a_segment_that_is_written_after_that_of_the_next_attempt_is_refused(
    server: S3Server, batch: Batch
) -> None:
    with server.holding_a_segment(written=False):
        batch.fail(0)
        batch.await_lapsed_claims()
        assert batch.attempt(1) == BODIES
        assert batch.attempt(0) == []
    assert batch.attempt(0) == []
