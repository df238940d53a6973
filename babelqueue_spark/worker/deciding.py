"""Run handlers and subscribers, message after message, and decide about each message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from babelqueue_spark.worker.admission import Admission
from babelqueue_spark.worker.messages import Message, Reply, outgoing_rows
from babelqueue_spark.worker.outcomes import Failure, Outcome, Verdict, WorkerReason, acked
from babelqueue_spark.worker.rows import Rows
from babelqueue_spark.worker.rules import Rules
from babelqueue_spark.worker.running import Handlers
from babelqueue_spark.worker.subscribing import notified
from babelqueue_spark.worker.timeouts import interrupted_after

if TYPE_CHECKING:
    from babelqueue_spark.tracing.spans import Call


@dataclass(frozen=True)
class Output:
    """A message that a handler returned.

    Attributes:
        row: of the message that was handled.
        columns: of a write.
    """

    row: int
    columns: dict[str, Any]


@dataclass(frozen=True)
class Decisions:
    """What was decided about the rows of a partition.

    Attributes:
        verdicts: one a row.
        outputs: what handlers and subscribers returned, in the order of the rows.
    """

    verdicts: tuple[Verdict, ...]
    outputs: tuple[Output, ...] = ()

    def rows_with(self, *outcomes: Outcome) -> list[int]:
        """List the rows whose outcome is one of these."""
        return [row for row, verdict in enumerate(self.verdicts) if verdict.outcome in outcomes]

    def reply_queues(self, targets: Mapping[str, Sized]) -> list[str]:
        """List the queues where nothing but replies goes; `targets` has all that goes out, by queue."""
        replies = Counter(output.columns["queue"] for output in self.outputs if output.columns.get("reply"))
        return sorted(queue for queue, count in replies.items() if len(targets.get(queue, ())) == count)

    def with_failures(self, verdicts: Mapping[int, Verdict]) -> Decisions:
        """Copy the decisions: these rows have other verdicts, and nothing that their handlers returned."""
        return Decisions(
            tuple(verdicts.get(row, verdict) for row, verdict in enumerate(self.verdicts)),
            tuple(output for output in self.outputs if output.row not in verdicts),
        )


def decide(rows: Rows, handlers: Handlers, admission: Admission, rules: Rules) -> Decisions:
    """Run the handlers of all rows, in order, and decide about each row.

    What a handler raises is a verdict; what its `partition_setup` raises is not, and is raised here.
    """
    verdicts: list[Verdict] = []
    outputs: list[Output] = []
    for row in range(len(rows)):
        verdict, returned = _decide(row, rows, handlers, admission, rules)
        verdicts.append(verdict)
        outputs += [Output(row, columns) for columns in returned]
    return Decisions(tuple(verdicts), tuple(outputs))


_Decided = tuple[Verdict, Sequence[dict[str, Any]]]
"""A verdict, and what the handler and the subscribers returned."""


def _decide(row: int, rows: Rows, handlers: Handlers, admission: Admission, rules: Rules) -> _Decided:
    attempts, job, policy = rows.attempts[row], rows.jobs[row], rules.policy
    if rows.is_gated(row):
        return policy.gated(attempts), []
    error = rows.errors[row]
    if error is not None:
        return policy.refused(attempts, error, rows.violations[row]), []
    if not handlers.has(job):
        return _waiting(row, rows, policy.unknown(attempts), WorkerReason.UNKNOWN_URN, rules), []
    record = admission.record(row)
    if record.standing == "granted" and handlers.open(job):
        record = admission.record(row)  # opening may have taken the rest of the lease
    if record.standing == "held":
        verdict = policy.released(attempts, WorkerReason.IN_FLIGHT)
        return _waiting(row, rows, verdict, WorkerReason.IN_FLIGHT, rules), []
    if record.standing == "granted":
        return _run(row, rows, handlers, admission, rules)
    if not record.ours:
        return Verdict(Outcome.DROPPED, attempts, WorkerReason.DUPLICATE), []
    # This very row was handled before a crash, and only what was returned for it is left to publish.
    admission.handled(row)
    return acked(attempts), json.loads(record.result)


def _run(row: int, rows: Rows, handlers: Handlers, admission: Admission, rules: Rules) -> _Decided:
    message = rows.message(row)
    context = partial(rows.context, row, rules.context)
    subscribers = handlers.subscribers(message.job)
    try:
        with _call(message, handlers, rules) as call:
            with interrupted_after(rules.timeout):
                result = handlers.run(message)
                parent = None if call is None else call.traceparent
                returned = outgoing_rows(
                    result, message, headers=rules.headers, context=context, parent=parent
                )
            if call is not None and isinstance(result, Reply) and result.exception:
                call.failed(result.exception)
            if subscribers:  # they run for what was handled, and that depends on its outputs too
                rules.check(returned)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (whatever a handler raises)
        admission.failed(row)
        return rules.policy.failed(message.attempts, Failure.of(error)), []
    for subscriber in subscribers:
        admission.record(row)  # renews the claim, if half of its lease is over
        returned += notified(subscriber, rows.message(row), context, rules)
    admission.handled(row, returned)
    return acked(message.attempts), returned


def _call(message: Message, handlers: Handlers, rules: Rules) -> AbstractContextManager[Call | None]:
    """Return the span of the handler; None where it has none."""
    if rules.spans is None or not handlers.calls(message.job):
        return nullcontext()
    return rules.spans.process(message, rules.batch_span)


def _waiting(row: int, rows: Rows, verdict: Verdict, reason: str, rules: Rules) -> Verdict:
    """Return the verdict; a release counts as an attempt where the queue cannot delay it."""
    if verdict.outcome is Outcome.RELEASED and not rules.can_wait(rows.queues[row]):
        return rules.policy.failed(rows.attempts[row], Failure(reason=reason))
    return verdict
