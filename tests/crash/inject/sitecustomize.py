"""Loaded by every Python process of a crash test: dies with SIGKILL at one named point, once.

CRASH_POINT names the point, CRASH_FLAG a file that does not exist yet, CRASH_TARGET who dies:
`worker` (this process) or `driver` (driver, JVM, and all workers).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _die() -> None:
    try:
        os.close(os.open(os.environ["CRASH_FLAG"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if os.environ["CRASH_TARGET"] == "driver":
        os.killpg(int(os.environ["CRASH_GROUP"]), signal.SIGKILL)
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _die()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, calls: int = 1) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    done = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        result = original(*args, **kwargs)
        done += 1
        if done >= calls:
            _die()
        return result

    setattr(owner, name, wrapped)


def _arm(point: str) -> None:
    from babelqueue_spark.bindings import binding_class
    from babelqueue_spark.journal import Segment
    from babelqueue_spark.source import claiming, stream

    binding = binding_class(os.environ["CRASH_BROKER"])
    {
        "before the claim": lambda: _before(claiming, "_take"),
        "after the claim": lambda: _before(claiming, "_without_redeliveries"),
        "after the journal": lambda: _before(claiming, "_acknowledge"),
        "in mid-acknowledge": lambda: _after(binding, "acknowledge"),
        "after the acknowledge": lambda: _before(Segment, "mark_acknowledged"),
        "after the mark": lambda: _after(Segment, "mark_acknowledged"),
        "in mid-yield": lambda: _after(stream, "to_rows"),
    }[point]()


if os.environ.get("CRASH_POINT") and not Path(os.environ["CRASH_FLAG"]).exists():
    _arm(os.environ["CRASH_POINT"])
