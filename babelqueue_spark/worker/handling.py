"""One partition of a batch on an executor: handle, write the decisions down, publish, count.

The order is the guarantee. Nothing is published before all decisions of the partition are in the ledger; from
then on they are not made again, whoever repeats the task or the batch.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Self

import pyarrow as pa
from pyspark import TaskContext

from babelqueue_spark.options import Options
from babelqueue_spark.publishing import publish
from babelqueue_spark.rows.ids import IdSource
from babelqueue_spark.worker.counts import PUBLISHED
from babelqueue_spark.worker.deciding import Decisions, Run
from babelqueue_spark.worker.events import exchange, log
from babelqueue_spark.worker.gate import Gate, OpenedGate
from babelqueue_spark.worker.idempotency import IdempotencyStore, Record
from babelqueue_spark.worker.ledger import Entry, Ledger, fingerprint
from babelqueue_spark.worker.messages import Message
from babelqueue_spark.worker.outcomes import Failure, FrameFailedError, Policy
from babelqueue_spark.worker.posts import by_target, posts_of
from babelqueue_spark.worker.routes import MessageHandler, Routes
from babelqueue_spark.worker.rows import Rows

COUNTS = pa.schema(
    [("job", pa.string()), ("outcome", pa.string()), ("reason", pa.string()), ("messages", pa.int64())]
)
"""What a task returns. The outcome `published` counts what handlers returned, by its own URN."""


Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]
Runner = Callable[[str], Run | None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the tasks of a batch need; it travels to the executors.

    Attributes:
        options: of the writes.
        routes: the handlers.
        policy: what becomes of whom.
        timeout: seconds that a handler has for a message; None = for ever.
        store: idempotency; None = messages are handled as often as they come.
        location, run, batch: of the ledger.
        exchange: folder for a line a message; None = none.
    """

    options: Options
    routes: Routes
    policy: Policy
    timeout: float | None
    store: IdempotencyStore | None
    location: str
    run: str
    batch: int
    exchange: str | None

    def ledger(self) -> Ledger:
        """The ledger of this batch."""
        return Ledger(self.location, self.run, self.batch)


# -- tasks -------------------------------------------------------------------------------------------------


def handle(work: Work) -> Task:
    """The task that runs message handlers: rows of `INPUT` to `COUNTS`."""

    def task(batches: Batches) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            with Partition(rows, work, "messages") as partition, ExitStack() as opened:
                yield partition.handle(_runner(work.routes, opened))

    return task


def admit(work: Work, name: str) -> Task:
    """The task that keeps the rows which a DataFrame handler may get; rows that have `INPUT`'s columns."""

    def task(batches: Batches) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            with Partition(rows, work, name) as partition:
                granted = [record.standing == "granted" for record in partition.admissions()]
                yield from pa.Table.from_batches(rows).filter(pa.array(granted)).to_batches()

    return task


def settle(work: Work, name: str, failure: Failure | None) -> Task:
    """The task that decides about the rows of a DataFrame handler: rows of `INPUT` to `COUNTS`."""

    def verdict(_: Message) -> None:
        if failure is not None:
            raise FrameFailedError(failure)

    def task(batches: Batches) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            with Partition(rows, work, name) as partition:
                yield partition.settle(lambda _: verdict, partition.opened_gate())

    return task


def _runner(routes: Routes, opened: ExitStack) -> Runner:
    """Gives the function for a URN; what a `partition_setup` opens stays open as long as `opened`."""
    resources: dict[str, Any] = {}

    def resource(handler: MessageHandler, setup: Callable[[], AbstractContextManager[Any]]) -> Any:
        if handler.pattern not in resources:
            resources[handler.pattern] = opened.enter_context(setup())
        return resources[handler.pattern]

    @cache
    def of(job: str) -> Run | None:
        handler = routes.of(job)
        if not isinstance(handler, MessageHandler):
            return None
        run, setup = handler.run, handler.partition_setup
        return run if setup is None else partial(_with, run, resource(handler, setup))

    return of


def _with(run: Callable[..., Any], resource: Any, message: Message) -> Any:
    return run(message, resource)


# -- a partition -------------------------------------------------------------------------------------------


class Partition:
    """The rows of one task, and what is done about them. A context manager, for its connections."""

    def __init__(self, batches: Sequence[pa.RecordBatch], work: Work, name: str) -> None:
        context = TaskContext.get()
        assert context is not None, "a handler runs inside a Spark task"
        self._work = work
        self._place = f"{name}-{context.partitionId():05d}"
        self._rows = Rows(batches)
        self._ledger = work.ledger()
        self._owner = fingerprint([f"{work.run} {work.batch} {self._place}".encode()])
        self._binding = work.options.binding()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._binding.close()
        if self._work.store is not None:
            self._work.store.close()

    def handle(self, runner: Runner) -> pa.RecordBatch:
        """Run message handlers, claiming as they go on, and settle; `COUNTS`."""
        rows = self._rows

        def wanted(row: int) -> bool:
            return rows.is_acceptable(row) and runner(rows.jobs[row]) is not None

        return self.settle(runner, Gate(self._work.store, self._owner, rows.ids, wanted))

    def admissions(self) -> list[Record]:
        """Which rows may be handled, claimed all at once, and written down: a repeat admits the same."""
        name = self._entry("admitted")
        entry = self._ledger.read(name)
        if entry is None:
            gate = Gate(self._work.store, self._owner, self._rows.ids, lambda _: True)
            records = [gate.admit(row) for row in range(len(self._rows))]
            entry = self._ledger.write(name, Entry({"standings": [record.standing for record in records]}))
        return [Record(standing) for standing in entry.notes["standings"]]

    def opened_gate(self) -> Gate:
        """A gate with the claims of `admissions`."""
        return OpenedGate(self._work.store, self._owner, self._rows.ids, self.admissions())

    def settle(self, runner: Runner, gate: Gate) -> pa.RecordBatch:
        """Decide, unless that is done, and carry the decisions out; `COUNTS`."""
        name = self._entry("decided")
        entry = self._ledger.read(name) or self._ledger.write(name, self._decided(runner, gate))
        if self._work.store is not None and entry.notes["failed"]:
            self._work.store.release(entry.notes["failed"], self._owner)
        for queue, messages in by_target(entry.posts, self._work.options, self._binding).items():
            self._publish(queue, messages, IdSource(entry.notes["writer"], f"{self._work.run} {self._place}"))
        return pa.RecordBatch.from_pylist(entry.notes["counts"], COUNTS)

    def _decided(self, runner: Runner, gate: Gate) -> Entry:
        work, rows = self._work, self._rows
        decisions = Decisions(
            rows,
            runner,
            gate,
            work.policy,
            timeout=work.timeout,
            headers=self._binding.capabilities.headers,
            can_wait=self._can_wait,
        )
        # Whoever decides anew (the ledger was lost) publishes anew, under ids of its own.
        writer = uuid.uuid4().hex
        posts = posts_of(rows, decisions, IdSource(writer), work.options, self._binding)
        self._tell(decisions, posts)
        return Entry(
            {"counts": _counts(rows, decisions), "failed": gate.to_release(), "writer": writer}, posts
        )

    def _can_wait(self, queue: str) -> bool:
        """Whether a message can be published again as it is, and stay out of sight for a while."""
        return self._binding.longest_delay(queue) != 0 and not self._binding.duplicate_window(queue)

    def _publish(self, queue: str, messages: pa.RecordBatch, stamp: IdSource) -> None:
        publish(self._binding, queue, messages, keys=stamp)

    def _tell(self, decisions: Decisions, posts: pa.RecordBatch) -> None:
        rows = self._rows
        name = f"{self._work.run}-{self._work.batch}-{self._place}"
        with exchange(self._work.exchange, name) as lines:
            for row, verdict in enumerate(decisions.verdicts):
                log(verdict, rows, row)
                lines.taken(verdict, rows, row)
            lines.sent(posts)

    def _entry(self, kind: str) -> str:
        return f"{self._place}-{self._rows.fingerprint}-{kind}"


def _counts(rows: Rows, decisions: Decisions) -> list[dict[str, Any]]:
    counts = Counter(
        (job, str(verdict.outcome), verdict.reason)
        for job, verdict in zip(rows.jobs, decisions.verdicts, strict=True)
    )
    counts.update((output.columns["job"], PUBLISHED, None) for output in decisions.outputs)
    return [dict(zip(COUNTS.names, (*key, count), strict=True)) for key, count in counts.items()]
