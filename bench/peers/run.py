"""A run: one program, one queue, and the ledger of what was done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.work import RECORD, Work
from bench.table import new_queue

PATIENCE = 120.0
"""Seconds without any progress after which a run has failed."""
POLL_SECONDS = 0.005
RECORD_BYTES = len(RECORD % (0, 0))

Supervise = Callable[[], None]
"""Starts what has ended, as a supervisor of services does, or raises what stopped it."""


@dataclass(frozen=True)
class Run:
    """So many messages of one queue, each of which takes these seconds."""

    url: str
    folder: Path
    count: int
    seconds: float
    store: str | None = None
    """Redis of the worker's handled messages."""
    queue: str = field(default_factory=new_queue)

    def __post_init__(self) -> None:
        self.ledger.touch()

    @property
    def ledger(self) -> Path:
        return self.folder / self.queue

    @property
    def work(self) -> Work:
        return Work(str(self.ledger), self.seconds)

    def records(self) -> int:
        """How often a message was done."""
        return self.ledger.stat().st_size // RECORD_BYTES

    def times_done(self) -> Counter[int]:
        """How often each message was done."""
        return Counter(int(line.split()[0]) for line in self.ledger.read_bytes().splitlines())

    def last_process(self) -> int:
        """The process that has just done a message."""
        return int(self.ledger.read_bytes().split()[-1])


def watch(run: Run, records: int, supervise: Supervise, patience: float = PATIENCE) -> tuple[int, float]:
    """Wait for so many records, or until none came for long; how many there are, and since when."""
    seen, moved = run.records(), time.perf_counter()
    while seen < records and time.perf_counter() - moved < patience:
        supervise()
        time.sleep(POLL_SECONDS)
        if (found := run.records()) > seen:
            seen, moved = found, time.perf_counter()
    return seen, moved


def pace(run: Run, supervise: Supervise) -> float:
    """Messages a second after the first fifth, which pays for the start.

    Raises:
        TimeoutError: nothing was done for long.
    """
    before, started = watch(run, run.count // 5, supervise)
    found, ended = before, started
    while missing := run.count - len(run.times_done()):
        wanted = found + missing
        found, ended = watch(run, wanted, supervise)
        if found < wanted:
            raise TimeoutError(f"{found:,} of {wanted:,} done, and none for {PATIENCE:g} s")
    return (run.count - before) / (ended - started)
