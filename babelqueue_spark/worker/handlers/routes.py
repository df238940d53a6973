"""Find the handler of a URN."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from pyspark.sql.types import DataType

from babelqueue_spark.envelope.urns import matches, specificity
from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker.handlers.calls import Step, is_async
from babelqueue_spark.worker.handlers.limits import ONE_BY_ONE, Limits
from babelqueue_spark.worker.handlers.responder import Responder
from babelqueue_spark.worker.messages import EXECUTION_FAILED, Message

PartitionSetup = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


@dataclass(frozen=True)
class _Called:
    """A function of one message, plain or async, run on executors.

    Attributes:
        pattern: a URN, in which `*` stands for any text.
        run: takes a message, and what is shared where something is.
        limits: of its calls.
    """

    pattern: str
    run: Callable[..., Any]
    limits: Limits = ONE_BY_ONE

    def step(self, message: Message, *shared: Any) -> Step:
        """Return the call for a message."""
        return Step(partial(self.run, message, *shared), self.is_async, self.is_inline)

    @property
    def is_inline(self) -> bool:
        """Whether it is called where messages are decided about, one after the other."""
        return self.limits.concurrency == 1 and not self.is_async

    @cached_property
    def is_async(self) -> bool:
        """Whether its calls are awaited."""
        return is_async(self.run)


@dataclass(frozen=True)
class MessageHandler(_Called):
    """The function that handles the messages of a URN.

    Attributes:
        partition_setup: opens what a partition's messages share; called when the handler first runs.
        responder: makes a reply of what the function returns; None = it answers nobody.
    """

    partition_setup: PartitionSetup | None = None
    responder: Responder | None = None


@dataclass(frozen=True)
class DataFrameHandler:
    """A function of a DataFrame, run on the driver.

    Attributes:
        pattern: a URN, in which `*` stands for any text.
        run: takes the rows and the number of the batch; may return a DataFrame to publish.
        data_schema: type of their `data`; None = JSON text.
        timeout: seconds that it has for a batch; None = no limit.
    """

    pattern: str
    run: Callable[[Any, int], Any]
    data_schema: DataType | str | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class Subscriber(_Called):
    """A function that hears of messages that were handled."""

    @property
    def name(self) -> str:
        """What logs and `execution_failed` call it."""
        return getattr(self.run, "__qualname__", type(self.run).__name__)


Handler = MessageHandler | DataFrameHandler


class Routes:
    """Handlers and subscribers by URN: an exact one first, then the pattern with most characters besides `*`.

    Of two patterns with as many, the one that was added first. A URN has one handler, and any number of
    subscribers.
    """

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self._handlers = {handler.pattern: handler for handler in handlers}
        self._subscribers: list[Subscriber] = []

    def add(self, handler: Handler) -> None:
        """Add a handler; `OptionError` where the URN has one."""
        if handler.pattern in self._handlers:
            raise OptionError(f"'{handler.pattern}' has a handler already: a URN has one")
        self._handlers[handler.pattern] = handler

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber."""
        self._subscribers.append(subscriber)

    def subscribers(self, job: str) -> list[Subscriber]:
        """Return the subscribers of a URN, in the order in which they run.

        A wildcard does not stand for `EXECUTION_FAILED`: a subscriber that raises would hear of it for ever.
        """
        found = [
            subscriber
            for subscriber in self._subscribers
            if (subscriber.pattern == job if job == EXECUTION_FAILED else matches(subscriber.pattern, job))
        ]
        return sorted(found, key=_rank)

    def message_handler(self, job: str) -> MessageHandler | None:
        """Return the message handler of a URN, or None."""
        handler = self.of(job)
        return handler if isinstance(handler, MessageHandler) else None

    def of(self, job: str) -> Handler | None:
        """Return the handler of a URN, or None."""
        return next((handler for handler in self.ordered() if matches(handler.pattern, job)), None)

    @property
    def limits(self) -> list[Limits]:
        """The bounds of all message handlers and subscribers."""
        called = [*self._handlers.values(), *self._subscribers]
        return [each.limits for each in called if isinstance(each, _Called)]

    def dataframe_handlers(self) -> list[DataFrameHandler]:
        """Return those that run on the driver."""
        return [handler for handler in self._handlers.values() if isinstance(handler, DataFrameHandler)]

    def ordered(self) -> list[Handler]:
        """Return all handlers, in the order in which their patterns are tried."""
        return sorted(self._handlers.values(), key=_rank)


def _rank(route: Handler | Subscriber) -> tuple[bool, int]:
    return specificity(route.pattern)


def check_pattern(pattern: str, what: str = "handler") -> None:
    """Raise `OptionError` where a handler (or what it is called) has no URN."""
    if not pattern.strip():
        raise OptionError(f"a {what} needs a URN, such as 'urn:babel:orders:created' or 'urn:babel:*'")


def check_plain(pattern: str, run: Callable[..., Any]) -> None:
    """Raise `OptionError` where a DataFrame handler is async."""
    if is_async(run):
        raise OptionError(
            f"the DataFrame handler of '{pattern}' is an async function, which nobody would await: run it "
            "with asyncio.run in a plain function"
        )
