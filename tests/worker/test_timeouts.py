"""The time limit of a handler: it ends the handler, and nothing else."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from babelqueue_spark.worker.handlers.timeouts import interrupted_after
from babelqueue_spark.worker.messages import HandlerTimeoutError


def test_a_handler_that_does_not_return_is_ended() -> None:
    with pytest.raises(HandlerTimeoutError), interrupted_after(0.01):
        threading.Event().wait()


@pytest.mark.parametrize("end", ["__enter__", "__exit__"])
def test_an_alarm_at_an_end_of_the_block_leaves_none_behind(end: str) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with alarm_in(end), interrupted_after(3600):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == before


@contextmanager
def alarm_in(function: str) -> Iterator[None]:
    """Let the alarm rise while the function of this name runs."""

    before = signal.getsignal(signal.SIGALRM)

    def rise(frame: FrameType, event: str, _: Any) -> None:
        is_set = signal.getsignal(signal.SIGALRM) != before
        if is_set and frame.f_code.co_name == function and event in ("call", "c_return"):
            signal.raise_signal(signal.SIGALRM)

    sys.setprofile(rise)
    try:
        yield
    finally:
        sys.setprofile(None)
