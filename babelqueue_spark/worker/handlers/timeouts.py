"""Bounds for handlers that do not return."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from babelqueue_spark.errors import BabelQueueError, OptionError
from babelqueue_spark.worker.messages import HandlerTimeoutError
from babelqueue_spark.worker.stores.idempotency import IdempotencyStore

T = TypeVar("T")

_AGAIN_SECONDS = 1.0
_GRACE_SECONDS = 10.0
_UNBOUNDED = nullcontext()


class StuckHandlerError(BabelQueueError):
    """A DataFrame handler does not even end when its Spark jobs are cancelled."""


def checked_timeout(name: str, seconds: float | None, store: IdempotencyStore | None) -> float | None:
    """Return the seconds; `OptionError` where they do not fit into the lease of the store."""
    if seconds is None:
        return None
    if seconds <= 0:
        raise OptionError(f"{name} is {seconds:g}, but takes seconds, more than 0; None = no limit")
    if store is not None and seconds > store.lease / 2:
        raise OptionError(
            f"{name} is {seconds:g} s, but the store's lease is {store.lease:g} s: make it twice as long, or "
            "another worker may handle what this one is at"
        )
    return seconds


def timed_out(seconds: float | None) -> HandlerTimeoutError:
    """Return the error of a handler that ran for longer."""
    return HandlerTimeoutError(f"the handler ran longer than {seconds:g} s")


def interrupted_after(seconds: float | None) -> AbstractContextManager[None]:
    """Bound the block, which runs in a process's main thread; None = not at all."""
    return _UNBOUNDED if seconds is None else _Interrupted(seconds)


class _Interrupted:
    """Raises `HandlerTimeoutError` inside the block when time is up.

    Once more a second later, and so on, should the block have caught it. Code that does not
    return to Python (a long call into a C library) is interrupted when it does.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._expire)
        signal.setitimer(signal.ITIMER_REAL, self._seconds, _AGAIN_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _expire(self, _: int, frame: FrameType | None) -> None:
        """Raise, but not where that would keep the alarm from being set up or taken back."""
        while frame is not None:
            if frame.f_code in _ENDS:
                return
            frame = frame.f_back
        raise timed_out(self._seconds)


_ENDS = (_Interrupted.__enter__.__code__, _Interrupted.__exit__.__code__)


def with_jobs_cancelled_after(seconds: float | None, spark: SparkSession, call: Callable[[], T]) -> T:
    """Return what `call` returns or raises; when time is up, its Spark jobs are cancelled, which ends it.

    Raises:
        HandlerTimeoutError: it raised after that.
        StuckHandlerError: it did not even end then.
    """
    if seconds is None:
        return call()
    tag = f"babelqueue-{uuid.uuid4().hex}"
    add_tag, cancel_tagged = _job_tags(spark)
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            _activate(spark)
            add_tag(tag)
            returned.append(call())
        except BaseException as error:  # noqa: BLE001 (it is raised again, in the thread that waits)
            raised.append(error)

    thread: Any = InheritableThread(target=run, session=spark, daemon=True)
    thread.start()
    thread.join(seconds)
    in_time = not thread.is_alive()
    if not in_time:
        cancel_tagged(tag)
        thread.join(_GRACE_SECONDS)
    if thread.is_alive():
        raise StuckHandlerError(
            f"a DataFrame handler ran longer than {seconds:g} s and does not end, though its Spark jobs were "
            "cancelled: what it waits for has to have a timeout of its own; its messages are read again"
        )
    if returned:
        return returned[0]
    if not in_time:
        raise timed_out(seconds) from raised[0]
    raise raised[0]


def _activate(spark: Any) -> None:
    """Make it the session of this thread, in which alone Spark finds data sources written in Python."""
    if isinstance(spark, SparkSession):
        spark.createDataFrame([], "none INT")  # PySpark has no other public way


def _job_tags(spark: Any) -> tuple[Callable[[str], Any], Callable[[str], Any]]:
    """Return how to tag the jobs of a thread, and how to cancel those with a tag."""
    if isinstance(spark, SparkSession):
        return spark.sparkContext.addJobTag, spark.sparkContext.cancelJobsWithTag
    return spark.addTag, spark.interruptTag
