"""Run handlers and subscribers, and decide about each message.

Messages are taken in the order of their rows, and as many calls are under way as handlers allow. One thread
decides: others run nothing but handlers. Decisions are in the order of rows, whatever ended first.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from babelqueue_spark.worker.admission import Admission
from babelqueue_spark.worker.handlers.calls import Calls, Step
from babelqueue_spark.worker.handlers.limits import Bounds, Breaker, Limits
from babelqueue_spark.worker.handlers.rules import Rules
from babelqueue_spark.worker.handlers.running import Handlers
from babelqueue_spark.worker.handlers.subscribing import notified
from babelqueue_spark.worker.handlers.timeouts import interrupted_after
from babelqueue_spark.worker.messages import Message, Reject, Reply, outgoing_rows
from babelqueue_spark.worker.outcomes import Failure, Outcome, Verdict, WorkerReason, acked
from babelqueue_spark.worker.rows import Rows

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


_Decided = tuple[Verdict, Sequence[dict[str, Any]]]
"""A verdict, and what the handler and the subscribers returned."""


def decide(rows: Rows, handlers: Handlers, admission: Admission, rules: Rules, calls: Calls) -> Decisions:
    """Run the handlers of all rows, and decide about each row.

    What a handler raises is a verdict; what its `partition_setup` raises is not, and is raised here.
    """
    return _Deciding(rows, handlers, admission, rules, calls).all()


@dataclass(eq=False, slots=True)
class _Flow:
    """The calls about one message, one after the other.

    Attributes:
        steps: ends with what was decided.
        context: in which the calls run: they have a span.
    """

    steps: Generator[Step, Any, _Decided]
    context: Context


class _Turns:
    """Lines of rows that are handled one after the other; a row may stand in several."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[int]] = {}
        self._held: dict[int, list[Hashable]] = {}

    def take(self, row: int, lines: Iterator[Hashable]) -> bool:
        """Take the head of all lines, or stand in the first that has one."""
        for line in lines:
            held = self._held.setdefault(row, [])
            if line in held:
                continue
            behind = self._lines.get(line)
            if behind is not None:
                behind.append(row)
                return False
            self._lines[line] = deque()
            held.append(line)
        return True

    def leave(self, row: int) -> list[int]:
        """Leave all lines; returns the rows that are their heads now."""
        heads: list[int] = []
        for line in self._held.pop(row, ()):
            if behind := self._lines[line]:
                heads.append(behind.popleft())
                self._held[heads[-1]].append(line)
            else:
                del self._lines[line]
        return heads


class _Deciding:
    """What is decided about the rows of a partition, and what is still under way."""

    def __init__(
        self, rows: Rows, handlers: Handlers, admission: Admission, rules: Rules, calls: Calls
    ) -> None:
        self._rows = rows
        self._handlers = handlers
        self._admission = admission
        self._rules = rules
        self._calls = calls
        # One object a row, and no more: a million of them would keep the garbage collector busy.
        self._verdicts: list[Verdict | None] = [None] * len(rows)
        self._returned: dict[int, Sequence[dict[str, Any]]] = {}
        self._flows: dict[int, _Flow] = {}
        self._turns = _Turns()
        self._ready: deque[int] = deque()
        self._trials: dict[str, int] = {}
        self._renewed_at = time.monotonic()

    def all(self) -> Decisions:
        """Decide about all rows."""
        unread = iter(range(len(self._rows)))
        try:
            while True:
                row = self._ready.popleft() if self._ready else next(unread, None)
                if row is not None:
                    self._take(row)
                elif self._flows:
                    self._settle_one()
                else:
                    break
        finally:
            for flow in self._flows.values():  # an error ends all: spans end in the context where they began
                flow.context.run(flow.steps.close)
        outputs = (
            Output(row, columns) for row, returned in sorted(self._returned.items()) for columns in returned
        )
        return Decisions(tuple(verdict for verdict in self._verdicts if verdict), tuple(outputs))

    # -- before a call -----------------------------------------------------------------------------

    def _take(self, row: int) -> None:
        """Decide about a row, start its calls, or leave it to those before it in its line."""
        verdict = self._without_handler(row)
        if verdict is not None:
            self._verdicts[row] = verdict
            return
        bounds = self._handlers.bounds(self._rows.jobs[row])
        if bounds.limits.ordered_by is not None or self._admission.tells_repeats:
            try:
                if not self._turns.take(row, self._lines(row, bounds.limits)):
                    return
            except Exception as error:  # noqa: BLE001 (whatever a function of the message raises)
                self._end(row, (self._failed(row, error), []))
                return
        self._await_turn(bounds)
        decided = self._without_call(row, bounds)
        if decided is not None:
            self._end(row, decided)
            return
        if bounds.pace is not None:
            bounds.pace.started()
        alone = None if self._rules.spans else self._handlers.alone(self._rows.jobs[row])
        if alone is not None:
            self._end(row, self._called_alone(row, alone, bounds))
        else:
            self._advance(row, _Flow(self._steps(row, bounds), copy_context()), None, None)

    def _without_handler(self, row: int) -> Verdict | None:
        """Return the verdict about a row that no handler gets."""
        rows, policy, attempts = self._rows, self._rules.policy, self._rows.attempts[row]
        if rows.is_gated(row):
            return policy.gated(attempts)
        if (error := rows.errors[row]) is not None:
            return policy.refused(attempts, error, rows.violations[row])
        if not self._handlers.has(rows.jobs[row]):
            return self._waiting(row, policy.unknown(attempts), WorkerReason.UNKNOWN_URN)
        return None

    def _lines(self, row: int, limits: Limits) -> Iterator[Hashable]:
        """Yield the lines in which a row stands: of its key, and of its id where repeats are told."""
        key = limits.key(partial(self._rows.message, row), self._rows.keys[row])
        if key is not None:
            yield "key", key
        if limits.concurrency > 1 and self._admission.tells_repeats and self._rows.ids[row]:
            yield "id", self._rows.ids[row]

    def _await_turn(self, bounds: Bounds) -> None:
        """Wait until one more call may start."""
        while len(self._flows) >= bounds.limits.concurrency:
            self._settle_one()
        if bounds.pace is not None:
            self._settle_for(bounds.pace.seconds)

    def _without_call(self, row: int, bounds: Bounds) -> _Decided | None:
        """Return what is decided about a row whose handler is not to be called now."""
        rows, admission, policy = self._rows, self._admission, self._rules.policy
        job, attempts = rows.jobs[row], rows.attempts[row]
        record = admission.record(row)
        if record.standing == "granted" and bounds.breaker and (paused := self._paused(row, bounds.breaker)):
            admission.failed(row)
            return paused, []
        if record.standing == "granted" and self._handlers.open(job):
            record = admission.record(row)  # opening may have taken the rest of the lease
        if record.standing == "granted":
            return None
        if record.standing == "held":
            verdict = policy.released(attempts, WorkerReason.IN_FLIGHT)
            return self._waiting(row, verdict, WorkerReason.IN_FLIGHT), []
        if not record.ours:
            return Verdict(Outcome.DROPPED, attempts, WorkerReason.DUPLICATE), []
        # This very row was handled before a crash, and only what was returned for it is left to publish.
        admission.handled(row)
        return acked(attempts), json.loads(record.result)

    def _paused(self, row: int, breaker: Breaker) -> Verdict | None:
        """Return the verdict about a row whose handler is paused; wait where its queue cannot."""
        while breaker.name in self._trials:
            self._settle_one()
        seconds = breaker.seconds()
        if seconds > 0 and self._rules.can_wait(self._rows.queues[row]):
            return self._rules.policy.paused(self._rows.attempts[row], seconds)
        self._settle_for(breaker.seconds)
        if breaker.is_open:
            self._trials[breaker.name] = row
        return None

    # -- calls -------------------------------------------------------------------------------------

    def _advance(self, row: int, flow: _Flow, result: Any, error: BaseException | None) -> None:
        """Give what a call returned, or raised, to its message: start its next call, or decide."""
        while True:
            try:
                if error is None:
                    step = flow.context.run(flow.steps.send, result)
                else:
                    step = flow.context.run(flow.steps.throw, error)
            except StopIteration as end:
                self._end(row, end.value)
                return
            if not step.is_inline:
                self._flows[row] = flow
                self._calls.start(row, step, flow.context.copy())
                return
            result, error = None, None
            try:
                result = flow.context.run(step.now, self._calls.timeout)
            except BaseException as raised:  # noqa: BLE001 (whatever a handler raises)
                error = raised

    def _settle_for(self, seconds: Callable[[], float]) -> None:
        """Settle calls that end, until there is nothing left to wait for."""
        while (left := seconds()) > 0:
            self._settle_one(left)

    def _settle_one(self, seconds: float = math.inf) -> None:
        """Settle a call that ends within so many seconds, if one does; renew the claims of the others."""
        interval = self._admission.seconds_between_renewals
        call = self._calls.next(min(seconds, interval))
        if call is not None:
            self._advance(call.row, self._flows.pop(call.row), call.result, call.error)
        if time.monotonic() - self._renewed_at > interval:
            self._admission.renew(self._flows)
            self._renewed_at = time.monotonic()

    def _called_alone(self, row: int, run: Callable[[Message], Any], bounds: Bounds) -> _Decided:
        """Call a plain handler that nothing runs beside: what `_steps` does, without a generator."""
        message = self._rows.message(row)
        try:
            with interrupted_after(self._calls.timeout):
                returned = self._outputs(row, run(message), message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (whatever a handler raises)
            return self._raised(row, error, bounds), []
        return self._handled(row, returned, bounds), returned

    def _steps(self, row: int, bounds: Bounds) -> Generator[Step, Any, _Decided]:
        """Call the handler of a message, then its subscribers."""
        rows, handlers, rules = self._rows, self._handlers, self._rules
        message = rows.message(row)
        subscribers = handlers.subscribers(message.job)
        failed = None
        try:
            with _span(message, handlers, rules) as span:
                result = yield from handlers.call(message)
                returned = self._outputs(row, result, message, span)
                failed = isinstance(result, Reply) and result.exception
                if span is not None and failed:
                    span.failed(failed)
                if subscribers:  # they run for what was handled, and that depends on its outputs too
                    rules.check(returned)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 (whatever a handler raises)
            return self._raised(row, error, bounds), []
        for subscriber in subscribers:
            self._admission.renew([row])
            context = partial(rows.context, row, rules.publishing.context)
            returned += yield from notified(subscriber, rows.message(row), context, rules)
        return self._handled(row, returned, bounds, failed=bool(failed)), returned

    # -- after a call ------------------------------------------------------------------------------

    def _outputs(
        self, row: int, result: Any, message: Message, span: Call | None = None
    ) -> list[dict[str, Any]]:
        """Return what a handler returned as rows of a write."""
        if result is None:
            return []
        context = partial(self._rows.context, row, self._rules.publishing.context)
        parent = None if span is None else span.traceparent
        return outgoing_rows(result, message, headers=self._rules.headers, context=context, parent=parent)

    def _handled(self, row: int, returned: Any, bounds: Bounds, *, failed: bool = False) -> Verdict:
        if bounds.breaker is not None:
            bounds.breaker.count(failed=failed)
        self._admission.handled(row, returned)
        return acked(self._rows.attempts[row])

    def _raised(self, row: int, error: BaseException, bounds: Bounds) -> Verdict:
        if bounds.breaker is not None:
            bounds.breaker.count(failed=not isinstance(error, Reject))
        return self._failed(row, error)

    def _failed(self, row: int, error: BaseException) -> Verdict:
        self._admission.failed(row)
        return self._rules.policy.failed(self._rows.attempts[row], Failure.of(error))

    def _waiting(self, row: int, verdict: Verdict, reason: str) -> Verdict:
        """Return the verdict; a release counts as an attempt where the queue cannot delay it."""
        if verdict.outcome is Outcome.RELEASED and not self._rules.can_wait(self._rows.queues[row]):
            return self._rules.policy.failed(self._rows.attempts[row], Failure(reason=reason))
        return verdict

    def _end(self, row: int, decided: _Decided) -> None:
        """Note what was decided; what stood behind the row in its lines is next."""
        self._verdicts[row], returned = decided
        if returned:
            self._returned[row] = returned
        self._ready.extend(self._turns.leave(row))
        if self._trials:
            self._trials = {name: trying for name, trying in self._trials.items() if trying != row}


def _span(message: Message, handlers: Handlers, rules: Rules) -> AbstractContextManager[Call | None]:
    """Return the span of the handler; None where it has none."""
    if rules.spans is None or not handlers.has_function(message.job):
        return nullcontext()
    return rules.spans.process(message, rules.batch_span)
