"""Give the messages of one partition to their handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

from babelqueue_spark.worker.handlers.calls import Calls, Steps
from babelqueue_spark.worker.handlers.limits import Bounds, Limits, Pace, breaker
from babelqueue_spark.worker.handlers.routes import Routes, Subscriber
from babelqueue_spark.worker.messages import Message
from babelqueue_spark.worker.outcomes import DataFrameFailedError, Failure


class Handlers(Protocol):
    """The handlers and subscribers that a partition's messages are given to."""

    def has(self, job: str) -> bool:
        """Tell whether a URN has a handler, or a subscriber at least; opens nothing."""

    def has_function(self, job: str) -> bool:
        """Tell whether `call` calls a user's function."""

    def open(self, job: str) -> bool:
        """Open what the handler of a URN shares in this partition; False where nothing was left to open."""

    def call(self, message: Message) -> Steps:
        """Call the handler of a message, which is open; returns what it returns, None where it has none."""

    def alone(self, job: str) -> Callable[[Message], Any] | None:
        """Return the function of a URN, which is open, where a message means one call of it, alone."""

    def subscribers(self, job: str) -> Sequence[Subscriber]:
        """Return the subscribers of a URN, in the order in which they run."""

    def bounds(self, job: str) -> Bounds:
        """Return what bounds the calls about messages of a URN."""


class MessageHandlers:
    """Message handlers, and what their `partition_setup` opened.

    Args:
        routes: the handlers and subscribers by URN.
        calls: of the task; it closes what was opened.
        state: the worker's, whose circuits last over batches.
        tasks: of the batch, where that is known.
    """

    def __init__(self, routes: Routes, calls: Calls, state: str = "", tasks: int | None = None) -> None:
        self._of = cache(routes.message_handler)
        self.subscribers = cache(routes.subscribers)
        self.bounds = cache(self._bounds)
        self.alone = cache(self._alone)
        self._calls = calls
        self._state = state
        self._tasks = tasks
        self._paces: dict[str, Pace] = {}
        self._shared: dict[str, tuple[Any, ...]] = {}

    def has(self, job: str) -> bool:
        return self._of(job) is not None or bool(self.subscribers(job))

    def has_function(self, job: str) -> bool:
        return self._of(job) is not None

    def open(self, job: str) -> bool:
        handler = self._of(job)
        if handler is None or handler.partition_setup is None or handler.pattern in self._shared:
            return False
        shared = self._calls.enter(handler.partition_setup(), is_async=handler.is_async)
        self._shared[handler.pattern] = (shared,)
        return True

    def call(self, message: Message) -> Steps:
        handler = self._of(message.job)
        if handler is None:
            return None
        step = handler.step(message, *self._shared.get(handler.pattern, ()))
        if handler.responder is None:
            return (yield step)
        return (yield from handler.responder.reply(message, step))

    def _alone(self, job: str) -> Callable[[Message], Any] | None:
        handler = self._of(job)
        if handler is None or not handler.is_inline or handler.responder or self.subscribers(job):
            return None
        shared = self._shared.get(handler.pattern, ())
        return (lambda message: handler.run(message, *shared)) if shared else handler.run

    def _bounds(self, job: str) -> Bounds:
        handler = self._of(job)
        if handler is None:
            return _bounds_of(self.subscribers(job))
        limits, pattern = handler.limits.of_a_task(self._tasks), handler.pattern
        rate, circuit = limits.rate_limit, limits.circuit
        return Bounds(
            limits,
            None if rate is None else self._paces.setdefault(pattern, Pace(rate)),
            None if circuit is None else breaker(self._state, pattern, circuit),
        )


class FinishedDataFrameHandler:
    """A DataFrame handler that has run on the driver: each of its messages ends as the handler did."""

    def __init__(self, failure: Failure | None, routes: Routes) -> None:
        self._failure = failure
        self.subscribers = cache(routes.subscribers)

    def has(self, job: str) -> bool:
        del job
        return True

    def has_function(self, job: str) -> bool:
        del job
        return False

    def open(self, job: str) -> bool:
        del job
        return False

    def call(self, message: Message) -> Steps:
        del message
        yield from ()
        if self._failure is not None:
            raise DataFrameFailedError(self._failure)

    def alone(self, job: str) -> None:
        del job

    def bounds(self, job: str) -> Bounds:
        return _bounds_of(self.subscribers(job))


def _bounds_of(subscribers: Sequence[Subscriber]) -> Bounds:
    """Return the bounds of messages that only subscribers hear of: those of the narrowest."""
    return Bounds(Limits(min((subscriber.limits.concurrency for subscriber in subscribers), default=1)))
