"""Loaded by every Python process of a crash test: dies with SIGKILL at the point that a file names.

CRASH_CONTROL is a folder with a file for each queue, which names that queue's point; who reaches it first renames
the file, so that each point kills once. CRASH_TARGET, or what the file names behind an `@`, is who dies:

- `worker`: this process, at once.
- `driver`: driver, JVM, and all workers, once every queue stands still at its point. CRASH_TASKS run at once, so many
  that one can stand at each.
- `executor`: the JVM of a cluster's executor; this process goes on until it is ended for that.
- `host`: a cluster's worker, with its executor and all Python workers.
- `nobody`: this process stands still until Spark ends it.

Where CRASH_BROKERS names brokers, Spark's workers are armed with the points of the source, with those brokers' bindings;
other processes have none of them, and start sooner unarmed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_SUFFIX = ".reached"
_STANDS_STILL = 60
"""Seconds after which Spark should long have ended a process that stands still."""
_PULSARS_CONSUMER = "babelqueue_spark.bindings.pulsar.consumer"
_queue = ""
"""The one that this process is at; a process of Spark's does one task at a time."""


def reached(point: str, queue: str = "") -> None:
    """Die here, if this is the point of the queue (by default that of the task)."""
    control = Path(os.environ["CRASH_CONTROL"], queue or _queue)
    try:
        wanted, _, target = control.read_text().partition("@")
        if wanted != point:
            return
        control.rename(control.with_suffix(_SUFFIX))
    except (FileNotFoundError, IsADirectoryError):
        return
    _die(target or os.environ["CRASH_TARGET"], control)


def _die(target: str, control: Path) -> None:
    if target == "driver":
        _await_the_others(control.parent)
        with suppress(ProcessLookupError):
            os.killpg(int(os.environ["CRASH_GROUP"]), signal.SIGKILL)
        os.killpg(os.getpgid(0), signal.SIGKILL)
    elif target == "executor":
        os.kill(_jvms()[0], signal.SIGKILL)
    elif target == "host":
        for jvm in _jvms():
            os.kill(jvm, signal.SIGKILL)
        os.killpg(os.getpgid(0), signal.SIGKILL)
    elif target == "nobody":
        threading.Event().wait(_STANDS_STILL)
        control.write_text("stood still, and Spark let it")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def _jvms() -> list[int]:
    """The executor that this process works for, and the cluster's worker that started it."""
    found, process = [], os.getppid()
    while process > 1:
        name, _, status = Path(f"/proc/{process}/stat").read_text().rpartition(")")
        if name.endswith("(java"):
            found.append(process)
        process = int(status.split()[1])
    return found[:2]


def _await_the_others(control: Path) -> None:
    moment = threading.Event()
    while any(path.suffix != _SUFFIX for path in control.iterdir()):
        moment.wait(0.05)


def before(owner: Any, name: str, point: str) -> None:
    """Arm a point in front of a function of a module or a class."""
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        reached(point)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, point: str) -> None:
    """Arm a point behind a function of a module or a class."""
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        reached(point)
        return result

    setattr(owner, name, wrapped)


def _in_the_middle(binding: Any) -> None:
    import pyarrow as pa

    acknowledge: Callable[..., Any] = binding.acknowledge

    def wrapped(self: Any, queue: str, deliveries: Any) -> Any:
        half = deliveries.num_rows // 2
        first = acknowledge(self, queue, deliveries.slice(0, half))
        reached("in mid-acknowledge")
        second = acknowledge(self, queue, deliveries.slice(half))
        return pa.concat_arrays([first, second])

    binding.acknowledge = wrapped


def _know_the_queue(reader: Any, queue_of: Callable[[Any], str]) -> None:
    read: Callable[..., Any] = reader.read

    def wrapped(self: Any, partition: Any) -> Any:
        enter(queue_of(partition))
        yield from read(self, partition)

    reader.read = wrapped


def enter(queue: str) -> None:
    """From here on, this process is at that queue."""
    global _queue
    _queue = queue


def arm() -> None:
    """Give this process the points of the source, with the bindings of the brokers in its environment."""
    from babelqueue_spark.bindings import LogBinding, binding_class

    bindings = {binding_class(broker) for broker in os.environ["CRASH_BROKERS"].split(",")}
    queues = {binding for binding in bindings if not issubclass(binding, LogBinding)}
    if queues:
        _arm_queues(queues)
    if bindings - queues:
        _arm_logs()


def _arm_logs() -> None:
    from babelqueue_spark.connector.rows import reading
    from babelqueue_spark.connector.source import log

    _know_the_queue(log.LogStreamReader, lambda partition: partition.queue)
    before(log._Log, "_batches", "before the read")
    before(reading, "_rows", "after the read")
    after(reading, "_rows", "in mid-yield")


def _arm_queues(bindings: Iterable[Any]) -> None:
    from babelqueue_spark.connector.rows import reading
    from babelqueue_spark.connector.source import claiming, stream
    from babelqueue_spark.journal import Segment

    _know_the_queue(stream.QueueStreamReader, lambda claim: claim.shares[0].queue)
    before(claiming, "_take", "before the claim")
    before(claiming, "_redeliveries", "after the claim")
    before(claiming, "_acknowledge", "after the journal")
    for binding in bindings:
        _in_the_middle(binding)
    before(Segment, "mark_acknowledged", "after the acknowledge")
    after(Segment, "mark_acknowledged", "after the mark")
    after(reading, "_rows", "in mid-yield")


def await_all_of_pulsar() -> None:
    """Let a poll of Pulsar, which counts what has come, wait longer for more: each queue is to have its task.

    Its module is changed when Spark has loaded it: Spark waits ten seconds at most for this process to start.
    Where no program reads from Pulsar, there is nothing to do.
    """
    if "pulsar" not in os.environ.get("CRASH_BROKERS", ""):
        return

    def change() -> None:
        while not hasattr(consumer := sys.modules.get(_PULSARS_CONSUMER), "_QUIET_MILLISECONDS"):
            threading.Event().wait(0.01)
        consumer._QUIET_MILLISECONDS = 2_000

    threading.Thread(target=change, daemon=True).start()


if os.environ.get("CRASH_BROKERS") and sys.orig_argv[-1] == "pyspark.worker":
    arm()
if sys.orig_argv[-1].endswith("streaming_source_runner"):
    await_all_of_pulsar()
