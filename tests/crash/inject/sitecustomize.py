"""Loaded by every Python process of a crash test: dies with SIGKILL at the point that a file names.

CRASH_CONTROL is that file; who reaches its point first renames it and dies, so that each point kills
once. CRASH_TARGET is who dies: `worker` (this process) or `driver` (driver, JVM, and all workers).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa


def reached(point: str) -> None:
    """Die here, if this is the point."""
    control = Path(os.environ["CRASH_CONTROL"])
    try:
        if control.read_text() != point:
            return
        control.rename(control.with_suffix(".reached"))
    except FileNotFoundError:
        return
    if os.environ["CRASH_TARGET"] == "driver":
        os.killpg(int(os.environ["CRASH_GROUP"]), signal.SIGKILL)
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, point: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        reached(point)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, point: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        reached(point)
        return result

    setattr(owner, name, wrapped)


def _in_the_middle(binding: Any) -> None:
    acknowledge: Callable[..., Any] = binding.acknowledge

    def wrapped(self: Any, queue: str, deliveries: Any) -> Any:
        half = deliveries.num_rows // 2
        first = acknowledge(self, queue, deliveries.slice(0, half))
        reached("in mid-acknowledge")
        second = acknowledge(self, queue, deliveries.slice(half))
        return pa.concat_arrays([first, second])

    binding.acknowledge = wrapped


def _arm() -> None:
    from babelqueue_spark.bindings import binding_class
    from babelqueue_spark.journal import Segment
    from babelqueue_spark.source import claiming, stream

    _before(claiming, "_take", "before the claim")
    _before(claiming, "_redeliveries", "after the claim")
    _before(claiming, "_acknowledge", "after the journal")
    _in_the_middle(binding_class(os.environ["CRASH_BROKER"]))
    _before(Segment, "mark_acknowledged", "after the acknowledge")
    _after(Segment, "mark_acknowledged", "after the mark")
    _after(stream, "to_rows", "in mid-yield")


if os.environ.get("CRASH_CONTROL"):
    _arm()
