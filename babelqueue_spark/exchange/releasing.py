"""Publish the jobs of a schedule when they are due: claim a chunk, publish it, drop it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.batches import HEADERS, outgoing
from babelqueue_spark.connector.message_log import MessageLog, message_log
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.publishing import OF_ONE_QUEUE, publish_or_singly
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.envelope import decode
from babelqueue_spark.envelope.columns import META_TYPE, TIMESTAMP
from babelqueue_spark.errors import BabelQueueError, BrokerError, QueuesFailedError
from babelqueue_spark.exchange.schedule_rows import Chunk, Job
from babelqueue_spark.exchange.schedule_table import ScheduleTable

logger = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62
_NO_IDS = IdSource("")
"""Each row has its ids already."""
_NO_QUEUE = "it names no queue: give the release the option 'queue', or the message a column 'queue'"

Errors = dict[int, str]
"""Row of a job in the schedule → why the broker cannot carry it."""


@dataclass(frozen=True)
class Released:
    """What a release did.

    Attributes:
        messages: how many jobs left the schedule, as messages on their queues.
        failed: how many stay there with an error, since the broker cannot carry them.
    """

    messages: int = 0
    failed: int = 0

    def __add__(self, other: Released) -> Released:
        return Released(self.messages + other.messages, self.failed + other.failed)


def release(
    table: ScheduleTable, options: Options, *, until: int | None, limit: int | None, ahead: int
) -> Released:
    """Publish what is due, then what a release that died or failed had claimed; times in microseconds.

    Raises:
        QueuesFailedError: some queues are full, or closed to the user; their jobs wait, the others went.
        BrokerError: the broker or the database failed; the next release continues.
    """
    writer = uuid.uuid4().hex
    done = Released()
    left: list[Chunk] = []
    with (
        options.binding() as binding,
        message_log(options.message_log, f"released-{writer}", binding, options.catalog) as lines,
    ):
        publisher = _Publisher(table, options, binding, lines)
        try:
            while limit is None or done.messages + done.failed < limit:
                room = _NO_LIMIT if limit is None else limit - done.messages - done.failed
                chunk = table.claim(
                    writer, until=until, ahead=ahead, limit=room, longest=publisher.longest_delay
                )
                chunk = chunk or table.take_over()
                if chunk is None:
                    break
                left.append(chunk)
                released, is_whole = publisher.release(chunk)
                done += released
                if is_whole:
                    left.remove(chunk)
        finally:
            for chunk in left:
                table.give_up(chunk)
    if publisher.closed:
        raise QueuesFailedError.of(publisher.closed, done, done.messages)
    return done


@dataclass(frozen=True)
class _Publisher:
    """Publishes the jobs of chunks, the same messages at each try, under the same idempotency keys.

    Attributes:
        closed: queues that took nothing, each with the reason.
    """

    table: ScheduleTable
    options: Options
    binding: BaseBinding
    lines: MessageLog
    closed: dict[str, str] = field(default_factory=dict)

    def longest_delay(self, queue: str | None) -> int:
        """Longest delay in a queue, in microseconds."""
        target = queue or _default_queue(self.options)
        allowed = self.binding.longest_delay(target) if target else 0
        return _NO_LIMIT if allowed is None else allowed * 1000

    def release(self, chunk: Chunk) -> tuple[Released, bool]:
        """Publish a chunk and drop what is published; whether nothing of it is left to another release."""
        jobs = self.table.jobs_of(chunk)
        published: list[Job] = []
        errors: Errors = {}
        try:
            for queue, its in _by_queue(jobs, self.options).items():
                self._release_queue(chunk, its, queue, published, errors)
        finally:
            self.table.finish(chunk, [job.number for job in published], errors)
        for job in jobs:
            if job.number in errors:
                logger.error("job '%s' was not released: %s", job.job_id, errors[job.number])
        return Released(len(published), len(errors)), len(published) + len(errors) == len(jobs)

    def _release_queue(
        self, chunk: Chunk, jobs: Sequence[Job], queue: str | None, published: list[Job], errors: Errors
    ) -> None:
        """Publish the jobs of one queue; those that wait, as it takes nothing, are in neither result."""
        if queue is None:
            errors |= _for_all(jobs, _NO_QUEUE)
            return
        try:
            for some, error in self._publish(chunk, jobs, queue):
                if error:
                    errors |= _for_all(some, error)
                else:
                    published += some
        except OF_ONE_QUEUE as error:
            self.closed[queue] = error.text

    def _publish(
        self, chunk: Chunk, jobs: Sequence[Job], queue: str
    ) -> Iterator[tuple[Sequence[Job], str | None]]:
        """Publish jobs to a queue; yields those that are published, and those that it cannot carry."""
        rows = _rows(jobs, queue, chunk)
        messages, invalid = self._encoded(rows, jobs)
        if invalid:
            errors = self._invalid(jobs, rows)
            for job in jobs:
                if job.number in errors:
                    yield [job], errors[job.number]
            valid = [row for row, job in enumerate(jobs) if job.number not in errors]
            if not valid:
                return
            jobs = [jobs[row] for row in valid]
            messages, _ = self._encoded(rows.take(pa.array(valid)), jobs)
        for part, error in publish_or_singly(
            self.binding,
            queue,
            messages,
            keys=lambda row: _keys(chunk, None if row is None else jobs[row]),
            singly=jobs[0].singly,
            note=lambda row: self.table.note_singly(chunk, [job.number for job in jobs[row:]]),
            lines=self.lines,
        ):
            yield jobs[part.start : part.stop], None if error is None else error.text

    def _invalid(self, jobs: Sequence[Job], rows: pa.RecordBatch) -> Errors:
        """Why the broker cannot carry some of the rows, one by one."""
        found = ((job, self._encoded(rows.slice(row, 1), [job])[1]) for row, job in enumerate(jobs))
        return {job.number: invalid for job, invalid in found if invalid}

    def _encoded(self, rows: pa.RecordBatch, jobs: Sequence[Job]) -> tuple[pa.RecordBatch, str]:
        """Return the rows, all of one queue, as messages; or none, and why the broker cannot carry them."""
        names = [f"job '{job.job_id}'" for job in jobs]
        try:
            [messages] = to_messages(rows, 0, _NO_IDS, self.options, self.binding, names=names).values()
        except BrokerError:
            raise
        except BabelQueueError as error:
            return outgoing(0), error.text
        return messages, ""


def _keys(chunk: Chunk, alone: Job | None) -> IdSource:
    """Name the idempotency keys: the chunk's, or those of a job that goes alone."""
    if alone is None:
        return IdSource(chunk.name, chunk.writer)
    return IdSource(f"{chunk.name} {alone.number}")


def _by_queue(jobs: Sequence[Job], options: Options) -> dict[str | None, list[Job]]:
    found: dict[str | None, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.queue or _default_queue(options), []).append(job)
    return found


def _default_queue(options: Options) -> str | None:
    return options.queue[0] if options.queue else None


def _for_all(jobs: Sequence[Job], error: str) -> Errors:
    return {job.number: error for job in jobs}


def _rows(jobs: Sequence[Job], queue: str, chunk: Chunk) -> pa.RecordBatch:
    """Columns of a write; ids, times and order are the chunk's, and so the same at each try."""
    envelopes = decode(pa.array([job.body for job in jobs], pa.binary()))
    sent = envelopes.column("meta")
    meta = {
        **{field.name: pc.struct_field(sent, field.name) for field in META_TYPE},
        "id": pa.array([_message_id(job) for job in jobs], pa.string()),
        "queue": pa.repeat(queue, len(jobs)),
        "created_at": pa.repeat(pa.scalar(chunk.claimed_at // 1000 * 1000, TIMESTAMP), len(jobs)),
    }
    columns = {
        "job": envelopes.column("job"),
        "trace_id": envelopes.column("trace_id"),
        "data": envelopes.column("data"),
        "meta": pa.StructArray.from_arrays([meta[field.name] for field in META_TYPE], fields=list(META_TYPE)),
        "queue": meta["queue"],
        "headers": pa.array([_headers(job) for job in jobs], HEADERS),
        "key": pa.array([job.key for job in jobs], pa.string()),
        "delay": pa.array([_delay(job, chunk) for job in jobs], pa.float64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _message_id(job: Job) -> str:
    named = IdSource(f"{job.job_id} {job.scheduled_at} {job.generation}")
    [found] = named.uuids("schedule", 0, 1).to_pylist()
    return str(found)


def _headers(job: Job) -> list[tuple[str, str]] | None:
    return (
        None if job.headers is None else list(msgspec.json.decode(job.headers, type=dict[str, str]).items())
    )


def _delay(job: Job, chunk: Chunk) -> float | None:
    """Seconds that the broker keeps a job which was claimed before its time."""
    return None if job.due_at <= chunk.due_by else max(0, job.due_at - chunk.taken_at) / 1_000_000
