"""Work off one partition of a batch, on an executor: decide, write the decisions down, publish, count.

The order is the guarantee: `Partition.settle` has the steps. Nothing is published before all decisions of the
partition are in the log of decisions. A task or batch that is repeated takes them from there.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
from pyspark import TaskContext

from babelqueue_spark.connector.message_log import message_log
from babelqueue_spark.connector.options import Options, resolved_config
from babelqueue_spark.connector.publishing import publish
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.errors import (
    BabelQueueError,
    BrokerAuthenticationError,
    BrokerUnreachableError,
    OptionError,
    QueueNotFoundError,
)
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.tracing import Send, Tracing
from babelqueue_spark.worker.admission import Admission, RecordedAdmission
from babelqueue_spark.worker.counts import PUBLISHED, SCHEDULED
from babelqueue_spark.worker.deciding import Decisions, decide
from babelqueue_spark.worker.decisions import DecisionLog, LogEntry, fingerprint
from babelqueue_spark.worker.destinations import Destinations
from babelqueue_spark.worker.events import log, log_lost_replies, log_taken
from babelqueue_spark.worker.handlers.calls import Calls
from babelqueue_spark.worker.handlers.routes import Routes
from babelqueue_spark.worker.handlers.rules import Rules
from babelqueue_spark.worker.handlers.running import FinishedDataFrameHandler, Handlers, MessageHandlers
from babelqueue_spark.worker.messages import CANCELLED
from babelqueue_spark.worker.outcomes import Failure, Policy, Verdict
from babelqueue_spark.worker.outgoing import by_target, check_outputs, encode_outputs, outgoing_messages
from babelqueue_spark.worker.partition_spans import by_queue, links_of, sends_of
from babelqueue_spark.worker.publishing import Publishing
from babelqueue_spark.worker.rows import Rows
from babelqueue_spark.worker.stores.idempotency import IdempotencyStore, Record

logger = logging.getLogger(__name__)

COUNTS = pa.schema(
    [
        ("job", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("messages", pa.int64()),
        ("links", pa.list_(pa.string())),
    ]
)
"""What a task returns. The outcome `published` counts what handlers and subscribers returned, by its URN.

`links`, in the first row and with tracing only: contexts of messages.
"""


Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the tasks of a batch need; it travels to the executors.

    Attributes:
        options: of the writes.
        routes: the handlers and subscribers.
        policy: decides between retry, dead letter, release and drop.
        publishing: where what handlers and subscribers return goes.
        timeout: seconds that a handler has for a message; None = no limit.
        store: idempotency; None = messages are handled as often as they come.
        location, run, batch: of the log of decisions.
        journal_config: of the log of decisions's object store, with references to secrets.
        catalog: says what is hidden in the message log.
        tracing: where spans go; None = there are none.
        batch_span: the `traceparent` of the batch.
        tasks: of the batch, where a handler's rate is that of all tasks.
    """

    options: Options
    routes: Routes
    policy: Policy
    publishing: Publishing
    timeout: float | None
    store: IdempotencyStore | None
    location: str
    run: str
    batch: int
    catalog: Registry | None = field(default=None, repr=False)
    journal_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    tracing: Tracing | None = None
    batch_span: str | None = None
    tasks: int | None = None

    def decisions(self) -> DecisionLog:
        """Return the decisions of this batch."""
        return DecisionLog(self.location, self.run, self.batch, resolved_config(self.journal_config))


# -- tasks -------------------------------------------------------------------------------------------------


def handle(work: Work) -> Task:
    """Make the task that runs message handlers: rows of `INPUT` to `COUNTS`."""

    def task(batches: Batches) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            with Partition(rows, work, "messages") as partition:
                yield partition.handle()

    return task


def admit(work: Work, name: str) -> Task:
    """Make the task that keeps the rows that a DataFrame handler may get: `INPUT` and other columns."""

    def task(batches: Batches) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            with Partition(rows, work, name) as partition:
                granted = [record.standing == "granted" for record in partition.admissions()]
                yield from pa.Table.from_batches(rows).filter(pa.array(granted)).to_batches()

    return task


def settle(work: Work, name: str, failure: Failure | None) -> Task:
    """Make the task that settles rows after their DataFrame handler has run: `INPUT` to `COUNTS`."""

    def task(batches: Batches) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            with Partition(rows, work, name) as partition:
                yield partition.settle(
                    FinishedDataFrameHandler(failure, work.routes), partition.recorded_admission()
                )

    return task


# -- a partition -------------------------------------------------------------------------------------------


class Partition:
    """The rows of one task, and what is done about them. A context manager, for its connections."""

    def __init__(self, batches: Sequence[pa.RecordBatch], work: Work, name: str) -> None:
        context = TaskContext.get()
        assert context is not None, "a handler runs inside a Spark task"
        self._work = work
        self._place = f"{name}-{context.partitionId():05d}"
        self._rows = Rows(batches, work.options.form)
        self._rows.check_form()
        self._decisions = work.decisions()
        self._owner = fingerprint([f"{work.run} {work.batch} {self._place}".encode()])
        self._binding = work.options.binding()
        routes, schedule = work.publishing.best_routes, work.publishing.schedule
        self._destinations = Destinations(work.options, self._binding, routes, schedules=schedule is not None)
        self._spans = None if work.tracing is None else work.tracing.spans(self._binding.name)
        self._calls = Calls(work.timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        with ExitStack() as closing:
            closing.enter_context(self._spans or nullcontext())
            if self._work.store is not None:
                closing.callback(self._work.store.close)
            closing.callback(self._binding.close)
            self._calls.__exit__(*error)

    def handle(self) -> pa.RecordBatch:
        """Run message handlers, claiming on the way, and settle; return `COUNTS`."""
        rows, work = self._rows, self._work
        handlers = MessageHandlers(work.routes, self._calls, work.location, work.tasks)

        def wanted(row: int) -> bool:
            return rows.is_acceptable(row) and handlers.has(rows.jobs[row])

        return self.settle(handlers, Admission(work.store, self._owner, rows.ids, wanted))

    def admissions(self) -> list[Record]:
        """Claim all rows at once, and record which may be handled: a repeat admits the same."""
        name = self._entry("admitted")
        entry = self._decisions.read(name)
        if entry is None:
            admission = Admission(self._work.store, self._owner, self._rows.ids, lambda _: True)
            records = [admission.admit(row) for row in range(len(self._rows))]
            standings = {"standings": [record.standing for record in records]}
            entry = self._decisions.write(name, LogEntry(standings))
        return [Record(standing) for standing in entry.notes["standings"]]

    def recorded_admission(self) -> Admission:
        """Admit what `admissions` did."""
        return RecordedAdmission(self._work.store, self._owner, self._rows.ids, self.admissions())

    def settle(self, handlers: Handlers, admission: Admission) -> pa.RecordBatch:
        """Decide unless that is done, write it down, release failed claims, publish; returns `COUNTS`."""
        name = self._entry("decided")
        entry = self._decisions.read(name) or self._decisions.write(name, self._decided(handlers, admission))
        if self._work.store is not None and entry.notes["failed"]:
            self._work.store.release(entry.notes["failed"], self._owner)
        keys = IdSource(entry.notes["writer"], f"{self._work.run} {self._place}")
        replies = entry.notes.get("replies", ())
        sends = by_queue(entry.notes.get("sends", ()))
        self._schedule(entry)
        for queue, messages in by_target(entry.sent, self._work.options, self._binding).items():
            self._publish(queue, messages, keys, sends[queue], replies=queue in replies)
        return pa.RecordBatch.from_pylist(entry.notes["counts"], COUNTS)

    def _schedule(self, entry: LogEntry) -> None:
        """Put what was decided into the schedule, which takes it once."""
        jobs, schedule = entry.scheduled, self._work.publishing.schedule
        if not jobs.num_rows:
            return
        if schedule is None:
            raise OptionError(
                f"{jobs.num_rows} decisions are for the schedule that this worker had: give it one again, "
                "Publishing(schedule=Schedule(…))"
            )
        schedule.put(jobs, fingerprint([f"{entry.notes['writer']} {self._place}".encode()]))

    def _publish(
        self, queue: str, messages: pa.RecordBatch, keys: IdSource, sends: Sequence[Send], *, replies: bool
    ) -> None:
        """Publish to one queue; replies hold up and create nothing, whatever queue a request names."""
        try:
            if replies and (missing := self._missing(queue)):
                raise QueueNotFoundError(
                    f"{self._binding.title}: {missing} is not there, where a request wants its reply: who "
                    "asks creates it first"
                )
            with nullcontext() if self._spans is None else self._spans.sending(sends):
                publish(self._binding, queue, messages, keys=keys)
        except BabelQueueError as error:
            if not replies or isinstance(error, BrokerUnreachableError):
                raise
            log_lost_replies(queue, messages, error)

    def _missing(self, queue: str) -> str:
        """Return what of a queue is not there; "" where that cannot be told, or this login may not ask."""
        with suppress(BrokerAuthenticationError):
            return self._binding.missing(queue)
        return ""

    def _decided(self, handlers: Handlers, admission: Admission) -> LogEntry:
        """Run the handlers, encode what they returned, build the messages that carry the decisions out."""
        rows, options, binding = self._rows, self._work.options, self._binding
        # A task that decides again (the log was deleted) publishes again, under ids of its own.
        writer = uuid.uuid4().hex
        decisions = decide(rows, handlers, admission, self._rules(), self._calls)
        outputs, failures = encode_outputs(decisions.outputs, IdSource(writer), self._destinations)
        for row in failures:
            admission.revoke(row)
        decisions = decisions.with_failures(self._verdicts(failures))
        notes: dict[str, Any] = {}
        if self._spans is not None:
            outputs, notes["sends"] = sends_of(decisions.outputs, outputs, self._destinations)
        entry = LogEntry(notes, outgoing_messages(rows, decisions, outputs, options, binding))
        self._log(decisions, entry.sent)
        counts = _counts(rows, decisions)
        if self._spans is not None:
            counts[0]["links"] = links_of(rows, self._spans)
        notes |= {
            "counts": counts,
            "failed": admission.to_release(),
            "writer": writer,
            "replies": decisions.reply_queues(by_target(entry.sent, options, binding)),
        }
        return entry

    def _rules(self) -> Rules:
        return Rules(
            policy=self._work.policy,
            headers=self._binding.capabilities.headers,
            can_wait=self._can_wait,
            check=lambda outputs: check_outputs(outputs, self._destinations),
            publishing=self._work.publishing,
            spans=self._spans,
            batch_span=self._work.batch_span,
        )

    def _verdicts(self, failures: Mapping[int, Exception]) -> dict[int, Verdict]:
        """Decide about messages whose handlers returned what cannot be published."""
        return {
            row: self._work.policy.failed(self._rows.attempts[row], Failure.of(error))
            for row, error in failures.items()
        }

    def _can_wait(self, queue: str) -> bool:
        """Tell whether a message can be published again as it is, and stay out of sight for a while."""
        return self._binding.longest_delay(queue) != 0 and not self._binding.duplicate_window(queue)

    def _log(self, decisions: Decisions, messages: pa.RecordBatch) -> None:
        rows = self._rows
        name = f"{self._work.run}-{self._work.batch}-{self._place}"
        with message_log(self._work.options.message_log, name, self._binding, self._work.catalog) as lines:
            for row, verdict in enumerate(decisions.verdicts):
                log(verdict, rows, row)
            log_taken(lines, decisions.verdicts, rows)
            lines.write_all("published", messages, messages.column("queue"))

    def _entry(self, kind: str) -> str:
        return f"{self._place}-{self._rows.fingerprint}-{kind}"


def _counts(rows: Rows, decisions: Decisions) -> list[dict[str, Any]]:
    counts = Counter(
        (job, str(verdict.outcome), verdict.reason)
        for job, verdict in zip(rows.jobs, decisions.verdicts, strict=True)
    )
    counts.update(
        (columns["job"], PUBLISHED, None if columns.get("send_at") is None else SCHEDULED)
        for columns in (output.columns for output in decisions.outputs)
        if CANCELLED not in columns
    )
    return [
        {"job": job, "outcome": outcome, "reason": reason, "messages": count}
        for (job, outcome, reason), count in counts.items()
    ]
