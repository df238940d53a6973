"""The transactions on the tables of a schedule."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    MetaData,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.batches import fitting
from babelqueue_spark.bindings.sql.client import SqlClient, key_of
from babelqueue_spark.bindings.sql.options import SqlOptions
from babelqueue_spark.exchange.schedule_rows import (
    FAILED,
    WAITING,
    Chunk,
    Job,
    chunks_table,
    job_of,
    jobs_table,
    puts_table,
    row_of,
)

STORE_ROWS = 1_000
"""Jobs that one transaction stores: databases bound a statement's parameters."""
_CHUNK_ROWS = 1_000
_CHUNK_BYTES = 64 << 20
_PAGE_ROWS = 1_000
_KEYS_KEPT = 7 * 86_400 * 1_000_000
"""Microseconds, longer than a worker that failed should wait for its next start."""
T = TypeVar("T")


class _ClaimedError(Exception):
    """A release is publishing jobs that are to be replaced: the transaction ends without a change."""

    def __init__(self, job_ids: set[str]) -> None:
        super().__init__()
        self.job_ids = job_ids


class ScheduleTable:
    """A schedule in a database, whose tables are made where they are missing; times are the server's.

    Args:
        url: a connection string of SQLAlchemy, secrets resolved.
        table: its name; claims stand in `<table>_chunks`, what workers put in `<table>_puts`.
        lease: seconds after which the claim of a release that died is another's.
    """

    def __init__(self, url: str, table: str, lease: float) -> None:
        given = SqlOptions.parse(BindingConfig(url=url, client_options={"table": table}))
        metadata = MetaData()
        self._jobs = jobs_table(table, metadata)
        self._chunks = chunks_table(f"{table}_chunks", metadata)
        self._puts = puts_table(f"{table}_puts", metadata)
        self._client = SqlClient(given.url, metadata)
        self._lease = int(lease * 1_000_000)

    def close(self) -> None:
        self._client.close()

    def store(self, jobs: Sequence[Job]) -> set[str]:
        """Store up to `STORE_ROWS` jobs, each in place of the one with its id; returns ids that are claimed.

        Those are left as they are. Of several jobs with one id, the last counts.
        """
        wanted = {key_of(job.job_id): job for job in jobs}
        held = self._client.compete(
            lambda connection: self._stored(connection, wanted), "scheduled the same ids"
        )
        return {wanted[key].job_id for key in held}

    def put(self, changes: Sequence[Job | str], key: str) -> tuple[set[str], list[str]]:
        """Store jobs, and delete those whose ids are given, all at once; nothing under a key that is known.

        Of several changes of one id, the last counts.

        Returns:
            The ids that are to be stored and are claimed, for which nothing was changed; and those that are
            to be deleted and are claimed, which stay.
        """
        last = {key_of(change if isinstance(change, str) else change.job_id): change for change in changes}
        stored = {name: change for name, change in last.items() if isinstance(change, Job)}
        deleted = {name: change for name, change in last.items() if isinstance(change, str)}

        def work(connection: Connection) -> list[str]:
            if not self._is_new(connection, key):
                return []
            held = set[str]()
            for names in _parts(sorted(stored)):
                held |= self._stored(connection, {name: stored[name] for name in names})
            if held:
                raise _ClaimedError({stored[name].job_id for name in held})
            return self._cancelled(connection, deleted)[1]

        try:
            return set(), self._client.compete(work, "scheduled the same ids")
        except _ClaimedError as error:
            return error.job_ids, []

    def _is_new(self, connection: Connection, key: str) -> bool:
        """Write the key down unless it is there; forget old ones."""
        puts, now = self._puts, self._now(connection)
        connection.execute(delete(puts).where(puts.c.put_at < now - _KEYS_KEPT))
        try:
            with connection.begin_nested():
                connection.execute(insert(puts).values(name=key, put_at=now))
        except IntegrityError:
            return False
        return True

    def _stored(self, connection: Connection, wanted: Mapping[str, Job]) -> set[str]:
        table, now = self._jobs, self._now(connection)
        known = self._chunk_of(connection, sorted(wanted))
        held = {key for key, chunk in known.items() if chunk > 0}
        rows = {key: row_of(job) for key, job in wanted.items() if key not in held}
        new = [
            {"id_key": key, "scheduled_at": now, "generation": 1, **row}
            for key, row in rows.items()
            if key not in known
        ]
        replaced = [{"which": key, **row} for key, row in rows.items() if key in known]
        if new:
            connection.execute(insert(table), new)
        if replaced:
            change = update(table).where(table.c.id_key == bindparam("which"), table.c.chunk <= WAITING)
            connection.execute(change.values(generation=table.c.generation + 1), replaced)
        return held

    def cancel(self, job_ids: Sequence[str]) -> tuple[int, list[str]]:
        """Delete jobs; returns how many there were, and the ids of those that are claimed, which stay."""
        wanted = {key_of(job_id): job_id for job_id in job_ids}

        return self._client.write(lambda connection: self._cancelled(connection, wanted))

    def _cancelled(self, connection: Connection, wanted: Mapping[str, str]) -> tuple[int, list[str]]:
        deleted, held = 0, list[str]()
        for keys in _parts(sorted(wanted)):
            mine = self._jobs.c.id_key.in_(keys)
            gone = connection.execute(delete(self._jobs).where(mine, self._jobs.c.chunk <= WAITING))
            deleted += gone.rowcount
            held += connection.scalars(select(self._jobs.c.id_key).where(mine))
        return deleted, [wanted[key] for key in held]

    def claim(
        self, writer: str, *, until: int | None, ahead: int, limit: int, longest: Callable[[str | None], int]
    ) -> Chunk | None:
        """Claim the jobs that are due first, in one chunk; None where nothing is due.

        Args:
            writer: of the chunk's idempotency keys.
            until: microseconds since 1970; None = now.
            ahead: microseconds by which a job may be claimed earlier.
            limit: most jobs.
            longest: queue → the longest delay there, in microseconds.
        """

        def work(connection: Connection) -> Chunk | None:
            now = self._now(connection)
            due = now if until is None else until
            numbers = self._due(connection, due, due + ahead, min(limit, _CHUNK_ROWS), now, longest)
            if not numbers:
                return None
            values = {
                "name": uuid.uuid4().hex,
                "writer": writer,
                "claimed_at": now,
                "due_by": due,
                "leased_until": now + self._lease,
            }
            made = connection.execute(insert(self._chunks).values(**values)).inserted_primary_key
            assert made is not None
            self._client.change(connection, update(self._jobs).values(chunk=made[0]), numbers)
            return Chunk(made[0], taken_at=now, **values)  # type: ignore[arg-type]

        return self._client.write(work)

    def _due(
        self,
        connection: Connection,
        due: int,
        last: int,
        limit: int,
        now: int,
        longest: Callable[[str | None], int],
    ) -> list[int]:
        """Rows to claim: what is due, and up to `last` what its queue can delay for the rest of its time."""
        jobs = self._jobs
        size = self._client.dialect.size(jobs.c.body)
        claimable = or_(jobs.c.due_at <= due, *self._early(connection, due, last, now, longest))
        found = connection.execute(
            select(jobs.c.id, jobs.c.due_at, jobs.c.queue, size)
            .where(jobs.c.chunk == WAITING, jobs.c.due_at <= last, claimable)
            .order_by(jobs.c.due_at, jobs.c.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        ).all()
        # Some databases take names for one that differ in case.
        ready = [row for row in found if row[1] <= due or row[1] - now <= longest(row[2])]
        return [row[0] for row in ready[: fitting((row[3] for row in ready), _CHUNK_BYTES)]]

    def _early(
        self,
        connection: Connection,
        due: int,
        last: int,
        now: int,
        longest: Callable[[str | None], int],
    ) -> Iterator[ColumnElement[bool]]:
        """Conditions of jobs that are not due, and that their queues can delay until they are."""
        if last <= due:
            return
        jobs = self._jobs
        waiting = jobs.c.chunk == WAITING, jobs.c.due_at > due, jobs.c.due_at <= last
        queues: dict[int, list[str | None]] = {}
        for queue in connection.scalars(select(jobs.c.queue).where(*waiting).distinct()):
            queues.setdefault(min(last, now + longest(queue)), []).append(queue)
        for until, its in queues.items():
            if until <= due:
                continue
            named = [jobs.c.queue.in_(part) for part in _parts([each for each in its if each is not None])]
            unnamed = [jobs.c.queue.is_(None)] if None in its else []
            yield and_(jobs.c.due_at <= until, or_(*named, *unnamed))

    def take_over(self) -> Chunk | None:
        """Claim a chunk whose release has died or failed, as it stands; None where there is none."""
        chunks = self._chunks

        def work(connection: Connection) -> Chunk | None:
            now = self._now(connection)
            found = connection.execute(
                select(chunks.c.id, chunks.c.name, chunks.c.writer, chunks.c.claimed_at, chunks.c.due_by)
                .where(chunks.c.leased_until <= now)
                .order_by(chunks.c.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            ).first()
            if found is None:
                return None
            chunk = Chunk(*found, taken_at=now, leased_until=now + self._lease)
            self._lease_until(connection, chunk.number, chunk.leased_until)
            return chunk

        return self._client.write(work)

    def jobs_of(self, chunk: Chunk) -> list[Job]:
        jobs = self._jobs
        ordered = select(jobs).where(jobs.c.chunk == chunk.number).order_by(jobs.c.due_at, jobs.c.id)
        with self._client.reading() as connection:
            return [job_of(row) for row in connection.execute(ordered)]

    def note_singly(self, chunk: Chunk, numbers: Sequence[int]) -> None:
        """Note that jobs of a chunk, by the numbers of their rows, are published one by one."""
        noted = update(self._jobs).where(self._jobs.c.chunk == chunk.number).values(singly=1)
        self._client.write(lambda connection: self._client.change(connection, noted, list(numbers)))

    def finish(self, chunk: Chunk, published: Sequence[int], errors: Mapping[int, str]) -> None:
        """Drop the published jobs of a chunk, by the numbers of their rows; the others stay.

        Those with an error have failed. The chunk is dropped with the last of its jobs.
        """
        jobs = self._jobs
        of_the_chunk = jobs.c.chunk == chunk.number

        def work(connection: Connection) -> None:
            for number, error in errors.items():
                failed = update(jobs).where(jobs.c.id == number, of_the_chunk)
                connection.execute(failed.values(chunk=FAILED, error=error))
            self._client.change(connection, delete(jobs).where(of_the_chunk), list(published))
            if connection.execute(select(jobs.c.id).where(of_the_chunk).limit(1)).first() is None:
                connection.execute(delete(self._chunks).where(self._chunks.c.id == chunk.number))

        self._client.write(work)

    def give_up(self, chunk: Chunk) -> None:
        """End the lease of a chunk that could not be published, unless another release has taken it over."""
        self._client.write(
            lambda connection: self._lease_until(
                connection, chunk.number, 0, self._chunks.c.leased_until == chunk.leased_until
            )
        )

    def _lease_until(self, connection: Connection, number: int, moment: int, *conditions: Any) -> None:
        mine = self._chunks.c.id == number
        connection.execute(update(self._chunks).where(mine, *conditions).values(leased_until=moment))

    def browse(self) -> Iterator[list[Job]]:
        """Yield all jobs, some at a time, in the order in which their ids were first scheduled."""
        jobs, seen = self._jobs, 0
        while True:
            page = select(jobs).where(jobs.c.id > seen).order_by(jobs.c.id).limit(_PAGE_ROWS)
            with self._client.reading() as connection:
                found = [job_of(row) for row in connection.execute(page)]
            if not found:
                return
            yield found
            seen = found[-1].number

    def _now(self, connection: Connection) -> int:
        return int(self._client.dialect.now(connection) * 1_000_000)

    def _chunk_of(self, connection: Connection, keys: list[str]) -> dict[str, int]:
        """Key → chunk of the jobs that are there, which no other transaction changes until ours ends."""
        jobs = self._jobs
        found = select(jobs.c.id_key, jobs.c.chunk).where(jobs.c.id_key.in_(keys)).with_for_update()
        return {row[0]: row[1] for row in connection.execute(found)}


def _parts(keys: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(keys), STORE_ROWS):
        yield keys[first : first + STORE_ROWS]
