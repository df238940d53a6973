"""Publish the jobs of a schedule when they are due: claim a chunk, publish it, drop it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.batches import HEADERS, outgoing
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.publishing import publish
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.envelope import decode
from babelqueue_spark.envelope.columns import META_TYPE, TIMESTAMP
from babelqueue_spark.errors import (
    BabelQueueError,
    BrokerAuthenticationError,
    BrokerError,
    BrokerFullError,
    BrokerUnreachableError,
    QueueNotFoundError,
)
from babelqueue_spark.exchange.table import Chunk, Job, ScheduleTable

logger = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62
_NO_IDS = IdSource("")
"""Each row has its ids already."""
_NO_QUEUE = "it names no queue: give the release the option 'queue', or the message a column 'queue'"

_OF_THE_BROKER = (BrokerUnreachableError, BrokerFullError, BrokerAuthenticationError)
"""What no message is the cause of: the whole chunk waits for the next release."""

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


def release(
    table: ScheduleTable, options: Options, *, until: int | None, limit: int | None, ahead: int
) -> Released:
    """Publish what is due, then what a release that died or failed had claimed; times in microseconds.

    Raises:
        BrokerError: the broker or the database failed; the next release continues.
    """
    writer = uuid.uuid4().hex
    messages = failed = 0
    with options.binding() as binding:

        def longest(queue: str | None) -> int:
            target = queue or _default_queue(options)
            allowed = binding.longest_delay(target) if target else 0
            return _NO_LIMIT if allowed is None else allowed * 1000

        while limit is None or messages + failed < limit:
            left = _NO_LIMIT if limit is None else limit - messages - failed
            chunk = table.claim(writer, until=until, ahead=ahead, limit=left, longest=longest)
            chunk = chunk or table.take_over()
            if chunk is None:
                break
            jobs = table.jobs_of(chunk)
            errors = _release_chunk(table, chunk, jobs, options, binding)
            messages, failed = messages + len(jobs) - len(errors), failed + len(errors)
    return Released(messages, failed)


def _release_chunk(
    table: ScheduleTable, chunk: Chunk, jobs: Sequence[Job], options: Options, binding: BaseBinding
) -> Errors:
    """Publish a chunk and drop it; returns the errors of those of its jobs that stay."""
    publisher = _Publisher(chunk, options, binding)
    errors: Errors = {}
    try:
        for queue, its in _by_queue(jobs, options).items():
            errors |= _for_all(its, _NO_QUEUE) if queue is None else publisher.publish(its, queue)
    except BabelQueueError:
        table.give_up(chunk)
        raise
    table.finish(chunk, errors)
    for job in jobs:
        if job.number in errors:
            logger.error("job '%s' was not released: %s", job.job_id, errors[job.number])
    return errors


def _by_queue(jobs: Sequence[Job], options: Options) -> dict[str | None, list[Job]]:
    found: dict[str | None, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.queue or _default_queue(options), []).append(job)
    return found


def _default_queue(options: Options) -> str | None:
    return options.queue[0] if options.queue else None


def _for_all(jobs: Sequence[Job], error: str) -> Errors:
    return {job.number: error for job in jobs}


@dataclass(frozen=True)
class _Publisher:
    """Publishes the jobs of a chunk, the same messages at each try, under the same idempotency keys."""

    chunk: Chunk
    options: Options
    binding: BaseBinding

    def publish(self, jobs: Sequence[Job], queue: str) -> Errors:
        """Publish jobs to a queue, all at once; those that the broker cannot carry are left out."""
        rows = _rows(jobs, queue, self.chunk)
        errors: Errors = {}
        messages, invalid = self._encoded(rows)
        if invalid:
            errors = self._invalid(jobs, rows)
            valid = [row for row, job in enumerate(jobs) if job.number not in errors]
            if not valid:
                return errors
            jobs = [jobs[row] for row in valid]
            messages, _ = self._encoded(rows.take(pa.array(valid)))
        try:
            publish(self.binding, queue, messages, keys=self._keys())
        except QueueNotFoundError as error:
            return errors | _for_all(jobs, error.text)
        except _OF_THE_BROKER:
            raise
        except BabelQueueError:
            return errors | self._publish_singly(jobs, queue, messages)
        return errors

    def _publish_singly(self, jobs: Sequence[Job], queue: str, messages: pa.RecordBatch) -> Errors:
        errors: Errors = {}
        for row, job in enumerate(jobs):
            try:
                publish(self.binding, queue, messages.slice(row, 1), keys=self._keys(job))
            except _OF_THE_BROKER:
                raise
            except BabelQueueError as error:
                errors[job.number] = error.text
        return errors

    def _keys(self, alone: Job | None = None) -> IdSource:
        """Names the idempotency keys: the chunk's, or those of a job that goes alone."""
        if alone is None:
            return IdSource(self.chunk.name, self.chunk.writer)
        return IdSource(f"{self.chunk.name} {alone.number}")

    def _invalid(self, jobs: Sequence[Job], rows: pa.RecordBatch) -> Errors:
        """Why the broker cannot carry some of the rows, one by one."""
        found = ((job, self._encoded(rows.slice(row, 1))[1]) for row, job in enumerate(jobs))
        return {job.number: invalid for job, invalid in found if invalid}

    def _encoded(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, str]:
        """Return the rows, all of one queue, as messages; or none, and why the broker cannot carry them."""
        try:
            [messages] = to_messages(rows, 0, _NO_IDS, self.options, self.binding).values()
        except BrokerError:
            raise
        except BabelQueueError as error:
            return outgoing(0), error.text
        return messages, ""


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
