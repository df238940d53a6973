"""Handlers are run, message after message, and each message gets its verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from babelqueue_spark.worker.gate import Gate
from babelqueue_spark.worker.messages import HandlerTimeoutError, Message, outgoing_rows
from babelqueue_spark.worker.outcomes import Because, Failure, Outcome, Policy, Verdict, acked
from babelqueue_spark.worker.rows import Rows
from babelqueue_spark.worker.timeouts import interrupted_after

Run = Callable[[Message], Any]


@dataclass(frozen=True)
class Output:
    """A message that a handler returned.

    Attributes:
        row: of the message that was handled.
        columns: of a write.
    """

    row: int
    columns: dict[str, Any]


class Decisions:
    """The verdicts about the rows of a partition, and what their handlers returned.

    Args:
        rows: the messages.
        runner: gives the function for a URN, or None.
        gate: which messages may be handled.
        policy: what becomes of whom.
        timeout: seconds that a handler has for a message; None = for ever.
        headers: whether the broker keeps any.
        can_wait: whether a queue takes messages that are to be read later.
    """

    def __init__(
        self,
        rows: Rows,
        runner: Callable[[str], Run | None],
        gate: Gate,
        policy: Policy,
        *,
        timeout: float | None,
        headers: bool,
        can_wait: Callable[[str], bool],
    ) -> None:
        self._rows = rows
        self._runner = runner
        self._gate = gate
        self._policy = policy
        self._timeout = timeout
        self._headers = headers
        self._can_wait = can_wait
        self.outputs: list[Output] = []
        self.verdicts: list[Verdict] = [self._decide(row) for row in range(len(rows))]

    def with_outcome(self, *outcomes: Outcome) -> list[int]:
        """The rows that one of these is done with."""
        return [row for row, verdict in enumerate(self.verdicts) if verdict.outcome in outcomes]

    def revoke(self, rows: Mapping[int, Exception]) -> None:
        """What these rows' handlers returned cannot be published: their messages failed after all."""
        self.outputs = [output for output in self.outputs if output.row not in rows]
        for row, error in rows.items():
            self._gate.revoke(row)
            self.verdicts[row] = self._policy.failed(self._rows.attempts[row], Failure.of(error))

    def _decide(self, row: int) -> Verdict:
        attempts = self._rows.attempts[row]
        if self._rows.is_gated(row):
            return self._policy.gated(attempts)
        error = self._rows.errors[row]
        if error is not None:
            return self._policy.refused(attempts, error)
        run = self._runner(self._rows.jobs[row])
        if run is None:
            return self._waiting(row, self._policy.unknown(attempts), Because.UNKNOWN_URN)
        record = self._gate.record(row)
        if record.standing == "held":
            return self._waiting(row, self._policy.released(attempts, Because.IN_FLIGHT), Because.IN_FLIGHT)
        if record.standing == "granted":
            return self._run(row, run)
        if not record.ours:
            return Verdict(Outcome.DROPPED, attempts, Because.DUPLICATE)
        # This very row was handled before a crash, and only what its handler returned is left to publish.
        self._keep(row, json.loads(record.result))
        self._gate.handled(row)
        return acked(attempts)

    def _run(self, row: int, run: Run) -> Verdict:
        message = self._rows.message(row)
        try:
            with interrupted_after(self._timeout):
                returned = outgoing_rows(run(message), message, headers=self._headers)
        except (Exception, SystemExit, HandlerTimeoutError) as error:  # noqa: BLE001 (whatever a handler raises)
            self._gate.failed(row)
            return self._policy.failed(message.attempts, Failure.of(error))
        self._gate.handled(row, returned)
        self._keep(row, returned)
        return acked(message.attempts)

    def _keep(self, row: int, returned: Sequence[dict[str, Any]]) -> None:
        self.outputs += [Output(row, columns) for columns in returned]

    def _waiting(self, row: int, verdict: Verdict, reason: str) -> Verdict:
        """The verdict; a release is an attempt where the queue cannot hold it back, or it would never end."""
        if verdict.outcome is Outcome.RELEASED and not self._can_wait(self._rows.queues[row]):
            return self._policy.failed(self._rows.attempts[row], Failure(reason=reason))
        return verdict
