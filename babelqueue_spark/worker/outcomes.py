"""Decide what is done with a message: the outcomes, and one function for each rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal, get_args

import pyarrow as pa

from babelqueue_spark.envelope import Reason
from babelqueue_spark.errors import OptionError, without_hidden
from babelqueue_spark.worker.backoff import Backoff
from babelqueue_spark.worker.messages import Reject, Retry

UnknownUrn = Literal["fail", "delete", "release", "dead_letter"]

MOST_ATTEMPTS = 2**31 - 1
_LONGEST_ERROR = 1_000
_NO_CHARACTERS = {0xFFFE: r"\ufffe", 0xFFFF: r"\uffff"}


class Outcome(StrEnum):
    """What is done with one message; the values name the counters."""

    ACKED = "acked"
    RETRIED = "retried"
    RELEASED = "released"
    DROPPED = "dropped"
    DEAD_LETTERED = "dead_lettered"


class WorkerReason(StrEnum):
    """Reasons of the worker's own; others come from `envelope.Reason` and from handlers."""

    FAILED = "failed"
    UNKNOWN_URN = "unknown_urn"
    DUPLICATE = "duplicate"
    IN_FLIGHT = "in_flight"
    CIRCUIT_OPEN = "circuit_open"


@dataclass(frozen=True)
class Verdict:
    """The decision about one message.

    Attributes:
        outcome: what is done.
        attempts: the message's count from now on.
        reason: why, unless it was handled.
        error, exception: text and class of what a handler raised.
        delay: seconds before it can be read again.
        annotated: whether a dead letter gets its block; without one it keeps every byte.
    """

    outcome: Outcome
    attempts: int
    reason: str | None = None
    error: str | None = None
    exception: str | None = None
    delay: float = 0.0
    annotated: bool = True


@lru_cache(maxsize=1024)
def acked(attempts: int) -> Verdict:
    """Give the verdict about a message that was handled."""
    return Verdict(Outcome.ACKED, attempts)


@dataclass(frozen=True)
class Failure:
    """What a handler raised, as values that can be sent to executors.

    Attributes:
        error: its text, without its class; None where it has none.
        exception: its class; None where no handler was there to raise.
        reason: why the message becomes a dead letter, now or in the end.
        after: seconds until the next attempt, where the handler said so.
        final: whether there is no next attempt.
    """

    error: str | None = None
    exception: str | None = None
    reason: str = WorkerReason.FAILED
    after: float | None = None
    final: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        if isinstance(error, DataFrameFailedError):
            return error.failure
        text = shortened(text_of(error))
        name = type(error).__name__
        if isinstance(error, Reject):
            return cls(text, name, shortened(error.reason) or "rejected", final=True)
        return cls(text, name, after=error.after if isinstance(error, Retry) else None)


class DataFrameFailedError(Exception):
    """Raised for each message of a DataFrame handler that failed on the driver."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


def text_of(error: BaseException) -> str:
    """Return the text of an exception; empty where it raises one itself."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (the code of whoever wrote the handler)
        return ""


def shortened(text: str, longest: int = _LONGEST_ERROR) -> str | None:
    """Cut a text behind so many characters, so that it fits into its broker; None where it is empty.

    What UTF-8 or SQS cannot hold is escaped, and what came by reference is hidden.
    """
    sound = without_hidden(text).encode("utf-8", "backslashreplace").decode().translate(_NO_CHARACTERS)
    return (f"{sound[:longest]}…" if len(sound) > longest else sound) or None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a worker does with messages that failed, have no handler, or are another worker's.

    Attributes:
        max_attempts: deliveries of a failing message before it becomes a dead letter, the first included.
        backoff: seconds before the first, second, … retry, the last for all that follow; or a `Backoff`.
        unknown_urn: what to do with a message that has no handler: `fail` (as if one had raised), `delete`,
            `release` (back into its queue, not counted), `dead_letter`.
        release_delay: seconds before a released message can be read again.

    Raises:
        OptionError: one of them is invalid.
    """

    max_attempts: int = 3
    backoff: Sequence[float] | Backoff = (0.0,)
    unknown_urn: UnknownUrn = "fail"
    release_delay: float = 5.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise OptionError(f"max_attempts is {self.max_attempts}, but takes a whole number of at least 1")
        if self.unknown_urn not in get_args(UnknownUrn):
            known = ", ".join(get_args(UnknownUrn))
            raise OptionError(f"unknown_urn is '{self.unknown_urn}', but takes one of {known}")
        if not isinstance(self.backoff, Backoff):
            object.__setattr__(self, "backoff", tuple(self.backoff))
            if any(seconds < 0 for seconds in self.backoff):
                raise OptionError(f"backoff is {list(self.backoff)}, but takes seconds, 0 or more")
        if self.release_delay < 1:
            raise OptionError(
                f"release_delay is {self.release_delay}, but takes at least 1 s: else it spins hot"
            )

    @property
    def publishes_again(self) -> bool:
        """Tell whether a message may go back to its queue."""
        return self.max_attempts > 1 or self.unknown_urn == "release"

    def refused(self, attempts: int, reason: str, violation: str | None = None) -> Verdict:
        """Dead-letter an envelope or payload that is refused: no retry helps. Without a URN it is poison."""
        named = Reason.POISON if reason == Reason.MISSING_URN else reason
        what, why = ("envelope", reason) if violation is None else ("payload", violation)
        return Verdict(Outcome.DEAD_LETTERED, attempts, named, shortened(f"the {what} was refused: {why}"))

    def gated(self, attempts: int) -> Verdict:
        """Dead-letter a message whose headers name another schema version, as it is; its body is not read."""
        reason = Reason.UNSUPPORTED_SCHEMA_VERSION
        return Verdict(Outcome.DEAD_LETTERED, attempts, reason, annotated=False)

    def failed(self, attempts: int, failure: Failure) -> Verdict:
        """Retry a message whose handler raised, or dead-letter it after the last attempt."""
        counted = min(attempts + 1, MOST_ATTEMPTS)
        if failure.final or counted >= self.max_attempts:
            return Verdict(Outcome.DEAD_LETTERED, counted, failure.reason, failure.error, failure.exception)
        delay = self._backoff(counted) if failure.after is None else failure.after
        return Verdict(Outcome.RETRIED, counted, failure.reason, failure.error, failure.exception, delay)

    def unknown(self, attempts: int) -> Verdict:
        """Apply `unknown_urn` to a message that has no handler."""
        match self.unknown_urn:
            case "delete":
                return Verdict(Outcome.DROPPED, attempts, WorkerReason.UNKNOWN_URN)
            case "release":
                return self.released(attempts, WorkerReason.UNKNOWN_URN)
            case "dead_letter":
                return Verdict(Outcome.DEAD_LETTERED, attempts, WorkerReason.UNKNOWN_URN)
            case "fail":
                return self.failed(attempts, Failure(reason=WorkerReason.UNKNOWN_URN))

    def released(self, attempts: int, reason: str) -> Verdict:
        """Put a message back into its queue as it is, after a pause, for another worker."""
        return Verdict(Outcome.RELEASED, attempts, reason, delay=self.release_delay)

    def paused(self, attempts: int, seconds: float) -> Verdict:
        """Put a message back into its queue as it is until its handler may be called again."""
        delay = max(self.release_delay, seconds)
        return Verdict(Outcome.RELEASED, attempts, WorkerReason.CIRCUIT_OPEN, delay=delay)

    def _backoff(self, retry: int) -> float:
        if isinstance(self.backoff, Backoff):
            [seconds] = self.backoff.delays(pa.array([retry])).to_pylist()
            return float(seconds)
        return self.backoff[min(max(retry, 1), len(self.backoff)) - 1] if self.backoff else 0.0
