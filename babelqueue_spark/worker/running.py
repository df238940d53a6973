"""Run the handlers of one partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Protocol

from babelqueue_spark.worker.messages import Message
from babelqueue_spark.worker.outcomes import DataFrameFailedError, Failure
from babelqueue_spark.worker.routes import MessageHandler, Routes, Subscriber


class Handlers(Protocol):
    """The handlers and subscribers that a partition's messages are given to."""

    def has(self, job: str) -> bool:
        """Tell whether a URN has a handler, or a subscriber at least; opens nothing."""

    def calls(self, job: str) -> bool:
        """Tell whether `run` calls a user's function here."""

    def open(self, job: str) -> bool:
        """Open what the handler of a URN shares in this partition; False where nothing was left to open."""

    def run(self, message: Message) -> Any:
        """Run the handler of a message, which is open; returns what it returns, None where it has none."""

    def subscribers(self, job: str) -> Sequence[Subscriber]:
        """Return the subscribers of a URN, in the order in which they run."""


class MessageHandlers:
    """Message handlers, and what their `partition_setup` opened.

    Args:
        routes: the handlers and subscribers by URN.
        opened: closes, at its end, what was opened.
    """

    def __init__(self, routes: Routes, opened: ExitStack) -> None:
        self._of: Callable[[str], MessageHandler | None] = cache(routes.message_handler)
        self.subscribers = cache(routes.subscribers)
        self._opened = opened
        self._resources: dict[str, Any] = {}

    def has(self, job: str) -> bool:
        return self._of(job) is not None or bool(self.subscribers(job))

    def calls(self, job: str) -> bool:
        return self._of(job) is not None

    def open(self, job: str) -> bool:
        handler = self._of(job)
        if handler is None or handler.partition_setup is None or handler.pattern in self._resources:
            return False
        self._resources[handler.pattern] = self._opened.enter_context(handler.partition_setup())
        return True

    def run(self, message: Message) -> Any:
        handler = self._of(message.job)
        if handler is None:
            return None
        if handler.partition_setup is None:
            return handler.run(message)
        return handler.run(message, self._resources[handler.pattern])


class FinishedDataFrameHandler:
    """A DataFrame handler that has run on the driver: each of its messages ends as the handler did."""

    def __init__(self, failure: Failure | None, routes: Routes) -> None:
        self._failure = failure
        self.subscribers = cache(routes.subscribers)

    def has(self, job: str) -> bool:
        del job
        return True

    def calls(self, job: str) -> bool:
        del job
        return False

    def open(self, job: str) -> bool:
        del job
        return False

    def run(self, message: Message) -> None:
        del message
        if self._failure is not None:
            raise DataFrameFailedError(self._failure)
