"""Messages that are sent later: stored in a database, published by whoever releases what is due."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.connector.options import envelope_options
from babelqueue_spark.connector.rows.bodies import bodies
from babelqueue_spark.connector.rows.columns import WriteRows
from babelqueue_spark.connector.rows.given import check_seconds
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import COLUMNS as WRITTEN
from babelqueue_spark.envelope import decode
from babelqueue_spark.envelope.columns import TIMESTAMP
from babelqueue_spark.errors import BabelQueueError, JobClaimedError, OptionError
from babelqueue_spark.exchange.releasing import Released, release
from babelqueue_spark.exchange.schedule_rows import Job
from babelqueue_spark.exchange.schedule_table import STORE_ROWS, ScheduleTable
from babelqueue_spark.secrets import resolve
from babelqueue_spark.worker.messages import LONGEST_JOB_ID

logger = logging.getLogger(__name__)

COLUMNS = ("job", "urn", "data", "trace_id", "queue", "headers", "meta", "key")
"""Columns of a message that waits; those of a write without what belongs to its sending."""
JOBS = (
    "job_id STRING, send_at TIMESTAMP, queue STRING, job STRING, trace_id STRING, data STRING, "
    "scheduled_at TIMESTAMP, generation BIGINT, state STRING, error STRING"
)
_ARROW = {"STRING": pa.string(), "TIMESTAMP": TIMESTAMP, "BIGINT": pa.int64()}
_JOBS_ARROW = pa.schema([(name, _ARROW[kind]) for name, kind in map(str.split, JOBS.split(", "))])
_STORED = pa.schema([("job_id", pa.string()), ("claimed", pa.bool_())])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PAUSE = 0.5


@dataclass(frozen=True)
class Schedule:
    """A table of messages that wait for their time, made where it is missing.

    Their time goes by the clock of the database's server; on SQLite by the host's.

    Args:
        url: any SQLAlchemy URL (SQLite, PostgreSQL, MariaDB), or `env:NAME`, `file:/path`. Driver and
            executors connect to it.
        table: its name. Claims stand in `<table>_chunks`, and what workers put in `<table>_puts`.
        lease: seconds after which what a release had claimed that died is published by another. Longer
            than the publication of a thousand messages.
    """

    url: str = field(repr=False)
    table: str = "babelqueue_schedule"
    lease: float = 120

    def __post_init__(self) -> None:
        check_seconds("lease", self.lease, 1)

    def send_at(
        self, frame: DataFrame, when: datetime | str | Column, job_id: str | Column | None = None
    ) -> list[str]:
        """Schedule a message for each row; returns their ids, in the order of the rows.

        A job whose id is there is replaced: its message, its time, and by a generation that is one higher
        the id of the message. Of several rows with one id, one counts. An invalid row ends the call; rows of
        other tasks may be scheduled by then.

        Args:
            frame: the columns `job` (or `urn`) and `data`, and optionally `trace_id`, `queue`, `headers`,
                `meta` and `key`, as in a write; `meta.id` and `meta.created_at` are those of the release.
            when: a time, or a column of times. What is due already goes with the next release.
            job_id: a column of ids; None = new ones.

        Where `when` or `job_id` is an expression, columns that no write has are passed over.

        Raises:
            JobClaimedError: a release is publishing jobs with these ids, so that they were not replaced;
                the other rows are scheduled.
            OptionError: a column cannot be scheduled.
        """
        _check_columns(frame, when, job_id)
        chosen = [F.col(name) for name in frame.columns if name in COLUMNS]
        moment = F.lit(_utc(when)) if isinstance(when, datetime) else _column(when)
        ids = F.lit(None) if job_id is None else _column(job_id)
        rows = frame.select(
            *chosen, moment.cast("timestamp").alias("_send_at"), ids.cast("string").alias("_job_id")
        )
        write = _Writer(self, uuid.uuid4().hex, minted=job_id is None)
        stored = rows.mapInArrow(write, "job_id STRING, claimed BOOLEAN").toArrow()
        scheduled = stored.filter(pc.invert(stored.column("claimed"))).column("job_id").to_pylist()
        claimed = stored.filter(stored.column("claimed")).column("job_id").to_pylist()
        if claimed:
            raise JobClaimedError(_claimed_text(claimed, "replaced"), claimed, scheduled)
        return scheduled  # type: ignore[no-any-return]

    def put(self, jobs: pa.RecordBatch, key: str) -> None:
        """Store and cancel jobs, all of them, or none where that was done under the same key: for workers.

        A job that a release is publishing is waited for, and stored again behind it.

        Args:
            jobs: in the order in which they count: `job_id`, `send_at` in microseconds since 1970 (null = the
                job is cancelled), and `queue`, `body`, `headers`, `key`.
            key: up to 64 characters.

        Raises:
            JobClaimedError: releases were publishing jobs for twice the lease; nothing was changed.
        """
        changes = [_change(row) for row in jobs.to_pylist()]
        until = time.monotonic() + 2 * self.lease  # one that died, and the release that takes over
        with self._open() as table:
            while True:
                claimed, kept = table.put(changes, key)
                if not claimed:
                    break
                if time.monotonic() > until:
                    raise JobClaimedError(_claimed_text(sorted(claimed), "replaced"), sorted(claimed))
                time.sleep(_PAUSE)
        if kept:
            logger.warning(_claimed_text(kept, "cancelled"))

    def cancel(self, job_ids: Iterable[str]) -> int:
        """Delete jobs by their ids; returns how many still waited.

        Unknown ids are ignored. Those that a release is publishing stay, and a warning names them.
        """
        if isinstance(job_ids, str):
            raise OptionError(f"cancel takes a list of ids, not the text '{job_ids}'")
        with self._open() as table:
            deleted, claimed = table.cancel(list(job_ids))
        if claimed:
            logger.warning(_claimed_text(claimed, "cancelled"))
        return deleted

    def jobs(self, spark: SparkSession) -> DataFrame:
        """Return all jobs, with the columns of `JOBS`; each action on it reads the table again.

        `state` is `waiting`, `claimed` while a release publishes the job, or `failed` with the `error` for
        which the broker cannot carry it: such a job stays until it is replaced or cancelled.
        """
        return spark.range(0, 1, 1, 1).mapInArrow(_Reader(self), JOBS)

    def release(
        self,
        options: Mapping[str, Any],
        *,
        until: datetime | None = None,
        limit: int | None = None,
        ahead: float = 0,
    ) -> Released:
        """Publish what is due, oldest first, and drop it from the schedule.

        A release claims a chunk of up to 1,000 jobs, which fixes order and ids of its messages, publishes
        it under an idempotency key, and drops it. What a release that died had claimed is published again
        under the same key, by the first release after the `lease`. Several releases may run at once; each
        job is claimed by one.

        Args:
            options: those of a write; `queue` for messages that name none.
            until: what is due by then; None = now.
            limit: most jobs; what a dead release had claimed goes whole.
            ahead: seconds by which a job may be given to its broker early, with the rest of its time as the
                broker's own delay; where that cannot delay as long, the job waits here.

        Raises:
            QueuesFailedError: some queues are full, or closed to the user; their jobs wait, the others went.
            BrokerError: the broker or the database failed. The next release continues.
        """
        parsed = envelope_options({name: str(value) for name, value in options.items()}, "a release")
        if limit is not None and not (isinstance(limit, int) and limit >= 1):
            raise OptionError(f"limit takes a number of at least 1, not {limit!r}")
        if until is not None and not isinstance(until, datetime):
            raise OptionError(f"until takes a datetime, not {until!r}")
        check_seconds("ahead", ahead, 0)
        with self._open() as table:
            return release(
                table,
                parsed,
                until=None if until is None else _microseconds(until),
                limit=limit,
                ahead=int(ahead * 1_000_000),
            )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield what `jobs` gives, as Arrow batches in this process."""
        with self._open() as table:
            for page in table.browse():
                yield _shown(page)

    def _open(self) -> closing[ScheduleTable]:
        return closing(ScheduleTable(resolve(self.url, "url"), self.table, self.lease))


@dataclass(frozen=True)
class _Reader:
    schedule: Schedule

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from self.schedule.batches()


@dataclass(frozen=True)
class _Writer:
    """Stores the rows of a task; a repeated task gives them the same ids."""

    schedule: Schedule
    run: str
    minted: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "a schedule is written inside a Spark task"
        source, row = IdSource(f"{self.run} {context.partitionId()}"), 0
        with self.schedule._open() as table:
            for batch in batches:
                for first in range(0, batch.num_rows, STORE_ROWS):
                    part = WriteRows(batch.slice(first, STORE_ROWS), row)
                    yield self._stored(part, source, table.store)
                    row += len(part)

    def _stored(
        self,
        rows: WriteRows,
        source: IdSource,
        store: Callable[[Sequence[Job]], set[str]],
    ) -> pa.RecordBatch:
        ids = source.uuids("job_id", rows.first, len(rows)) if self.minted else rows.texts("_job_id")
        names = ids.to_pylist()
        _check(rows, names)
        claimed = store(_jobs(rows, names, source))
        return pa.RecordBatch.from_arrays(
            [ids, pa.array([name in claimed for name in names], pa.bool_())], schema=_STORED
        )


def _jobs(rows: WriteRows, names: Sequence[str], source: IdSource) -> list[Job]:
    headers = rows.column("headers")
    columns = {
        "job_id": names,
        "due_at": rows.batch.column("_send_at").cast(pa.int64()).to_pylist(),
        "queue": rows.queue.to_pylist(),
        "body": bodies(rows, pc.fill_null(rows.queue, "unknown"), source).to_pylist(),
        "headers": [None] * len(names) if headers is None else map(_headers, headers.to_pylist()),
        "key": rows.texts("key").to_pylist(),
    }
    return [Job(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _change(row: Mapping[str, Any]) -> Job | str:
    """Return the job of a row, or the id of one that is cancelled."""
    if row["send_at"] is None:
        return str(row["job_id"])
    return Job(
        job_id=row["job_id"],
        due_at=row["send_at"],
        queue=row["queue"],
        body=row["body"],
        headers=_headers(row["headers"]),
        key=row["key"],
    )


def _headers(pairs: list[tuple[str, str]] | None) -> bytes | None:
    return msgspec.json.encode(dict(pairs)) if pairs else None


def _check(rows: WriteRows, names: Sequence[str | None]) -> None:
    for row, job_id in enumerate(names):
        if not job_id or len(job_id) > LONGEST_JOB_ID:
            raise BabelQueueError(
                f"{rows.name(row)} has no job id of 1 to {LONGEST_JOB_ID} characters: fill the column"
            )
    missing = rows.batch.column("_send_at").is_null()
    if pc.any(missing).as_py():
        name = rows.first_name(missing)
        raise BabelQueueError(f"{name} has no time to be sent at: fill the column that 'when' names")


def _shown(page: Sequence[Job]) -> pa.RecordBatch:
    envelopes = decode(pa.array([job.body for job in page], pa.binary()))
    columns = {
        **{name: envelopes.column(name) for name in ("job", "trace_id", "data")},
        "send_at": pa.array([job.due_at for job in page], TIMESTAMP),
        "scheduled_at": pa.array([job.scheduled_at for job in page], TIMESTAMP),
        "generation": pa.array([job.generation for job in page], pa.int64()),
        **{
            name: pa.array([getattr(job, name) for job in page], pa.string())
            for name in ("job_id", "queue", "state", "error")
        },
    }
    return pa.RecordBatch.from_arrays([columns[field.name] for field in _JOBS_ARROW], schema=_JOBS_ARROW)


def _check_columns(frame: DataFrame, *named: object) -> None:
    expressions = any(isinstance(each, Column) for each in named)
    texts = {each for each in named if isinstance(each, str)}
    for name in frame.columns:
        if name in COLUMNS or name in texts or (expressions and name not in WRITTEN):
            continue
        raise OptionError(
            f"column '{name}' cannot be scheduled: a schedule takes {', '.join(COLUMNS)}, and the columns "
            "that 'when' and 'job_id' name"
        )


def _column(given: str | Column) -> Column:
    return F.col(given) if isinstance(given, str) else given


def _utc(moment: datetime) -> datetime:
    """Return a time of a zone; without one, of this host's."""
    return moment.astimezone(UTC)


def _microseconds(moment: datetime) -> int:
    return (_utc(moment) - _EPOCH) // _MICROSECOND


def _claimed_text(claimed: Sequence[str], what: str) -> str:
    some = ", ".join(f"'{job_id}'" for job_id in claimed[:5])
    more = f" and {len(claimed) - 5} more" if len(claimed) > 5 else ""
    return f"a release is publishing the jobs {some}{more}, so they were not {what}"
