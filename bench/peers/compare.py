"""The worker beside Celery, Taskiq, Dramatiq and FastStream: the same messages, brokers and work.

Each has two processes, the settings that its documentation gives for throughput, and those that keep a
message until it is done. Then one process is killed in mid-run.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from bench.peers.ours import Ours
from bench.peers.programs import PEERS, Peer, install
from bench.peers.run import Run, pace, watch
from bench.peers.work import REDELIVERED_AFTER
from bench.redis import session
from bench.table import Row, in_turns, row, show
from tests.servers import RedisServer
from tests.servers.rabbitmq import RabbitServer

MESSAGES = 50_000
WARM_MESSAGES = 500
KILLED_MESSAGES, KILLED_SECONDS = 5_000, 0.01
ROUNDS = 1
LOADS = {"no-op": (0.0, 5.0), "10 ms": (0.01, 1.5), "100 ms": (0.1, 1.5)}
"""Seconds that a message waits, and the floor."""

Program = Ours | Peer
NewRun = Callable[[], Run]


def rows(messages: int = MESSAGES) -> list[Row]:
    """Rates with each broker and load, and what a kill did."""
    install()
    with ExitStack() as stack:
        redis, rabbit = stack.enter_context(RedisServer()), stack.enter_context(RabbitServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = session()
        stack.callback(spark.stop)
        ours, found = Ours(spark), []
        for broker, url in {"Redis": redis.url, "RabbitMQ": rabbit.url}.items():
            new = partial(Run, url, folder)
            speed(ours, partial(new, WARM_MESSAGES, 0.0))
            for load, (seconds, floor) in LOADS.items():
                found += rates(f"{load}, {broker}", [ours, *PEERS], partial(new, messages, seconds), floor)
            killed = partial(new, min(messages, KILLED_MESSAGES), KILLED_SECONDS, redis.url)
            found += kills(f"kill -9, {broker}", [ours, *PEERS], killed)
        return found


def rates(work: str, programs: list[Program], new: NewRun, floor: float) -> list[Row]:
    """Messages a second of the first, against each other."""
    found = in_turns({each.title: partial(speed, each, new) for each in programs}, ROUNDS)
    ours, *theirs = found.values()
    return [row(work, ours, each.title, their, floor) for each, their in zip(PEERS, theirs, strict=True)]


def speed(program: Program, new: NewRun) -> float:
    """Messages a second of a new queue."""
    run = new()
    program.fill(run)
    with program.running(run) as supervise:
        return pace(run, supervise)


def kills(work: str, programs: list[Program], new: NewRun) -> list[Row]:
    """Messages that were done in spite of a kill, and those done once only, against each other."""
    ours, *theirs = [after_kill(each, new()) for each in programs]
    return [
        row(f"{work}, {how}", ours[how], each.title, their[how], floor, "messages")
        for each, their in zip(PEERS, theirs, strict=True)
        for how, floor in (("done", 1.0), ("done once", None))
    ]


def after_kill(program: Program, run: Run) -> dict[str, int]:
    """How many messages were done, and how many once."""
    program.fill(run)
    with program.running(run) as supervise:
        watch(run, run.count // 2, supervise)
        kill(run.last_process())
        watch(run, sys.maxsize, supervise, patience=3 * REDELIVERED_AFTER)
    times = run.times_done()
    return {"done": len(times), "done once": sum(count == 1 for count in times.values())}


def kill(pid: int) -> None:
    """Send SIGKILL to a process that this one, or a process of it, has started."""
    assert pid in {each.pid for each in psutil.Process().children(recursive=True)}
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(show(rows(int(sys.argv[1]) if sys.argv[1:] else MESSAGES)))
