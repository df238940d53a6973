"""Bound how many calls of a handler are under way, how fast they follow each other, and when they pause."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from babelqueue_spark.errors import OptionError

logger = logging.getLogger("babelqueue_spark.worker")

OrderedBy = Literal["key"] | Callable[[Any], Hashable]
"""The key of a delivery, or a function of the message: those of one value are handled one after the other."""

MOST_CALLS = 10_000
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h)\s*(total)?\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Circuit:
    """When a handler is not called for a while, because it fails again and again.

    Args:
        failures: so many calls that fail in a row open the circuit. A `Reject` is no failure.
        pause: seconds for which messages are released instead. Then one call is tried: where it succeeds, the
            circuit is closed, else it opens again.

    Raises:
        OptionError: one of them is too small.
    """

    failures: int = 20
    pause: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise OptionError(f"Circuit: failures is {self.failures}, but takes a whole number of at least 1")
        if not 0 < self.pause < float("inf"):
            raise OptionError(f"Circuit: pause is {self.pause}, but takes seconds, more than 0")


@dataclass(frozen=True)
class RateLimit:
    """How often a handler is called.

    Attributes:
        per_second: calls, in each task or in all.
        is_total: whether all tasks of a batch share it.
    """

    per_second: float
    is_total: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `100/s`, `30/m` or `5/h`, of each task; with `total` behind it, of all tasks of a batch."""
        found = _RATE.fullmatch(text)
        if found is None or float(found[1]) <= 0:
            raise OptionError(
                f"rate_limit is '{text}', but takes calls a time, such as '100/s', '30/m' or '5/h' for each "
                "task, or '100/s total' for all tasks of a batch"
            )
        return cls(float(found[1]) / _SECONDS[found[2]], found[3] is not None)

    def of_a_task(self, tasks: int | None) -> RateLimit:
        """Return what each of so many tasks may do."""
        return RateLimit(self.per_second / (tasks or 1)) if self.is_total else self


@dataclass(frozen=True)
class Limits:
    """The bounds of a handler's calls within one task.

    Attributes:
        concurrency: calls under way; one runs where messages are decided about.
        ordered_by: says which messages run one after the other; None = none of them need to.
        rate_limit: None = as often as there are messages.
        circuit: None = it is called whatever it raises.
    """

    concurrency: int = 1
    ordered_by: OrderedBy | None = None
    rate_limit: RateLimit | None = None
    circuit: Circuit | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MOST_CALLS:
            raise OptionError(
                f"concurrency is {self.concurrency}, but takes a whole number from 1 to {MOST_CALLS:,}"
            )
        if self.ordered_by is not None and self.ordered_by != "key" and not callable(self.ordered_by):
            raise OptionError(
                f"ordered_by is '{self.ordered_by}', but takes 'key', or a function of the message"
            )

    @classmethod
    def of(
        cls, concurrency: int, ordered_by: OrderedBy | None, rate_limit: str | None, circuit: Circuit | None
    ) -> Self:
        """Return the bounds that a user gives a handler."""
        rate = None if rate_limit is None else RateLimit.parse(rate_limit)
        return cls(concurrency, ordered_by, rate, circuit)

    def key(self, message: Callable[[], Any], delivered: str | None) -> Hashable:
        """Return what a message is ordered by; None where that is nothing.

        Args:
            message: gives it.
            delivered: the key of its delivery.
        """
        if callable(self.ordered_by):
            return self.ordered_by(message())
        return delivered if self.ordered_by else None

    def of_a_task(self, tasks: int | None) -> Limits:
        """Return the bounds in each of so many tasks of a batch."""
        return self if self.rate_limit is None else replace(self, rate_limit=self.rate_limit.of_a_task(tasks))


ONE_BY_ONE = Limits()


class Pace:
    """Says when the next call may start."""

    def __init__(self, rate: RateLimit) -> None:
        self._interval = 1 / rate.per_second
        self._next = 0.0

    def seconds(self) -> float:
        """Return how long the next call has to wait."""
        return self._next - time.monotonic()

    def started(self) -> None:
        """Count a call."""
        self._next = max(self._next, time.monotonic()) + self._interval


@dataclass
class Breaker:
    """The circuit of one handler, in one process: it lasts over tasks and batches.

    Attributes:
        name: of the handler, for the log.
        is_open: whether calls pause, or one is tried after the pause.
    """

    name: str
    circuit: Circuit
    is_open: bool = False
    _failures: int = 0
    _until: float = 0.0

    def seconds(self) -> float:
        """Return how long calls still have to pause."""
        return self._until - time.monotonic() if self.is_open else 0.0

    def count(self, *, failed: bool) -> None:
        """Count a call; one that refuses its message has not failed."""
        if failed:
            self._failed()
        else:
            self._succeeded()

    def _succeeded(self) -> None:
        self._failures = 0
        if self.is_open and self.seconds() <= 0:
            self.is_open = False
            logger.info("circuit.closed %s is called again", self.name)

    def _failed(self) -> None:
        """Open it after so many failures in a row, and after that of the call that was tried."""
        self._failures += 1
        if self.seconds() > 0 or (not self.is_open and self._failures < self.circuit.failures):
            return
        self.is_open = True
        self._until = time.monotonic() + self.circuit.pause
        logger.warning(
            "circuit.open %s is not called for %g s: %d calls in a row failed",
            self.name,
            self.circuit.pause,
            self._failures,
        )


_breakers: dict[tuple[str, str], Breaker] = {}


def breaker(state: str, pattern: str, circuit: Circuit) -> Breaker:
    """Return the circuit of a worker's handler in this process; with other bounds, another one."""
    found = _breakers.get((state, pattern))
    if found is None or found.circuit != circuit:
        found = _breakers[state, pattern] = Breaker(pattern, circuit)
    return found


@dataclass(frozen=True)
class Bounds:
    """What bounds the calls about the messages of a URN in one task.

    Attributes:
        pace: how fast they follow each other; None = as fast as they can.
        breaker: keeps a handler from being called while it fails; None = nothing does.
    """

    limits: Limits
    pace: Pace | None = None
    breaker: Breaker | None = None
