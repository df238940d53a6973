"""Call users' functions beside each other: plain ones in threads, async ones on one event loop.

The thread that calls `Calls` decides about messages; the others run nothing but handlers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Self

from babelqueue_spark.worker.handlers.timeouts import interrupted_after, timed_out

logger = logging.getLogger("babelqueue_spark.worker")

GRACE_SECONDS = 5.0
"""How long a cancelled call, or a resource that is closed, may take to end."""


@dataclass(slots=True)
class Step:
    """One call of a user's function.

    Attributes:
        run: the function, with its arguments.
        is_async: whether it is awaited.
        is_inline: whether it is called where messages are decided about, while nothing else is.
    """

    run: Callable[[], Any]
    is_async: bool
    is_inline: bool

    def now(self, seconds: float | None) -> Any:
        """Call it here, for so many seconds at most."""
        with interrupted_after(seconds):
            return self.blocking()

    def blocking(self) -> Any:
        """Call it; what it yields is taken while it may take time."""
        result = self.run()
        if result is None or isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
            return result
        return list(result)

    async def awaited(self) -> Any:
        """Await it, or what it yields."""
        result = self.run()
        return [each async for each in result] if isinstance(result, AsyncIterator) else await result


Steps = Generator[Step, Any, Any]
"""Yields calls, and gets what they returned."""


@dataclass(eq=False)
class Call:
    """A call that is under way, or has ended.

    Attributes:
        row: of the message that it is about.
        result, error: what it returned, or raised.
        is_given_up: whether nobody waits for it any more.
    """

    row: int
    step: Step
    context: Context
    deadline: float
    result: Any = None
    error: BaseException | None = None
    is_given_up: bool = False
    is_done: bool = False


@dataclass(eq=False)
class Calls:
    """The calls of one task that are under way. A context manager, which ends them, and what they share.

    Args:
        timeout: seconds that a call has; None = no limit. An async call is cancelled then. One in a thread is
            given up: it counts as failed, and its thread ends when it returns.
    """

    timeout: float | None = None
    _ended: SimpleQueue[Call] = field(default_factory=SimpleQueue)
    _in_order: tuple[deque[Call], deque[Call]] = field(default_factory=lambda: (deque(), deque()))
    _shared: ExitStack = field(default_factory=ExitStack)
    _threads: _Threads | None = None
    _loop: _Loop | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if self._loop is not None:
                self._loop.cancel_calls()
            self._shared.__exit__(*error)
        finally:
            if self._loop is not None:
                self._loop.close()
            if self._threads is not None:
                self._threads.close()

    def enter(self, manager: Any, *, is_async: bool) -> Any:
        """Open what calls share, and return it; of a manager of both kinds, the one that is wanted."""
        if isinstance(manager, AbstractAsyncContextManager) and (
            is_async or not isinstance(manager, AbstractContextManager)
        ):
            return self._shared.enter_context(self._running_loop().opened(manager))
        return self._shared.enter_context(manager)

    def start(self, row: int, step: Step, context: Context) -> None:
        """Start a call, in a context of its own."""
        grace = GRACE_SECONDS if step.is_async else 0.0
        seconds = math.inf if self.timeout is None else self.timeout + grace
        call = Call(row, step, context, time.monotonic() + seconds)
        if self.timeout is not None:
            self._in_order[step.is_async].append(call)
        if step.is_async:
            self._running_loop().start(call)
        else:
            self._running_threads().start(call)

    def next(self, seconds: float = math.inf) -> Call | None:
        """Return a call that has ended or is given up; None where there is none for so many seconds."""
        until = time.monotonic() + seconds
        while True:
            late = self._first_to_give_up()
            end = until if late is None else min(until, late.deadline)
            try:
                call = self._ended.get(timeout=None if end == math.inf else max(0.0, end - time.monotonic()))
            except Empty:
                return self._given_up(late) if late is not None and late.deadline <= end else None
            if not call.is_given_up:
                call.is_done = True
                return call

    def _first_to_give_up(self) -> Call | None:
        """Return the call whose time ends first."""
        for calls in self._in_order:
            while calls and calls[0].is_done:
                calls.popleft()
        return min(
            (calls[0] for calls in self._in_order if calls), key=lambda call: call.deadline, default=None
        )

    def _given_up(self, call: Call) -> Call:
        call.is_given_up = call.is_done = True
        call.error = timed_out(self.timeout)
        if self._threads is not None and not call.step.is_async:
            self._threads.lost()
        return call

    def _running_loop(self) -> _Loop:
        if self._loop is None:
            self._loop = _Loop(self._ended, self.timeout)
        return self._loop

    def _running_threads(self) -> _Threads:
        if self._threads is None:
            self._threads = _Threads(self._ended)
        return self._threads


def is_async(run: Callable[..., Any]) -> bool:
    """Tell whether a function, or an object that is called, is to be awaited."""
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (run, getattr(run, "__call__", None))  # noqa: B004 (it is looked at, not called)
    )


class _Threads:
    """Threads for plain functions: as many as calls are under way.

    They end with the process, whatever a handler waits for: an executor of Python's library would wait.
    """

    def __init__(self, ended: SimpleQueue[Call]) -> None:
        self._ended = ended
        self._waiting: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._alive = 0

    def start(self, call: Call) -> None:
        with self._lock:
            is_free = self._idle > 0
            self._idle -= is_free
            self._alive += not is_free
        if not is_free:
            threading.Thread(target=self._work, name="babelqueue-handler", daemon=True).start()
        self._waiting.put(call)

    def lost(self) -> None:
        """Note that a thread's call is given up: the thread ends when its call returns."""
        with self._lock:
            self._alive -= 1

    def close(self) -> None:
        for _ in range(self._alive):
            self._waiting.put(None)

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            try:
                call.result = call.context.run(call.step.blocking)
            except BaseException as error:  # noqa: BLE001 (it is raised again, where the message is decided about)
                call.error = error
            if call.is_given_up:
                return
            with self._lock:
                self._idle += 1
            self._ended.put(call)
            del call


class _Loop:
    """An event loop in a thread of its own, for async functions and for what they share."""

    def __init__(self, ended: SimpleQueue[Call], timeout: float | None) -> None:
        self._ended = ended
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()
        self._new: deque[Call] = deque()
        self._is_woken = False
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="babelqueue-handlers", daemon=True)
        self._thread.start()

    def start(self, call: Call) -> None:
        """Start a call; a loop that has not looked yet is not woken again, which is most of the price."""
        self._new.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._start_new)

    @contextmanager
    def opened(self, manager: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        """Open a resource, and close it in the same task, as libraries of tasks and timeouts want it."""
        entered: Future[Any] = Future()
        left = asyncio.Event()
        held = self._submit(_hold(manager, entered, left))
        try:
            yield entered.result()
        finally:
            self._loop.call_soon_threadsafe(left.set)
            self._wait(held, "a resource of partition_setup was not closed")

    def cancel_calls(self) -> None:
        """End the calls that are still under way."""
        self._wait(self._submit(self._cancelled()), "an async handler did not end, though it was cancelled")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(GRACE_SECONDS)

    def _serve(self) -> None:
        with self._runner:
            self._runner.run(self._stopped.wait())

    def _submit(self, coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _wait(self, future: Future[None], text: str) -> None:
        if wait([future], GRACE_SECONDS).done:
            future.result()
        else:
            logger.warning("%s within %g s", text, GRACE_SECONDS)

    def _start_new(self) -> None:
        self._is_woken = False
        while self._new:
            call = self._new.popleft()
            task = self._loop.create_task(self._run(call), context=call.context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call) -> None:
        bound = asyncio.timeout(self._timeout)
        try:
            async with bound:
                call.result = await call.step.awaited()
        except BaseException as error:  # noqa: BLE001 (it is raised again, where the message is decided about)
            call.error = timed_out(self._timeout) if bound.expired() else error
        self._ended.put(call)

    async def _cancelled(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _hold(manager: AbstractAsyncContextManager[Any], entered: Future[Any], left: asyncio.Event) -> None:
    try:
        async with manager as resource:
            entered.set_result(resource)
            await left.wait()
    except BaseException as error:
        if entered.done():
            raise
        entered.set_exception(error)
