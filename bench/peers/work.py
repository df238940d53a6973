"""What each program is told, and what it does with a message; of the standard library alone."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass
from functools import cache

IN_FLIGHT = 1_000
"""Messages that one process works on at a time, where it can wait for so many."""
REDELIVERED_AFTER = 20
"""Seconds until a message of a dead process is another's, where no connection tells of its end."""
TOLD = "BENCH_RUN"
"""Variable with URL, queue, ledger and seconds."""
RECORD = b"%07d %08d\n"


@dataclass(frozen=True)
class Work:
    """Waits as if a handler called somebody, and then writes down what was done, and by which process."""

    ledger: str
    seconds: float

    def __call__(self, number: int) -> None:
        """Work that blocks."""
        if self.seconds:
            time.sleep(self.seconds)
        self.done(number)

    async def awaited(self, number: int) -> None:
        """Work of a coroutine."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        self.done(number)

    def done(self, number: int) -> None:
        """Append to the ledger, which survives a `kill -9` and costs all programs the same."""
        os.write(_opened(self.ledger), RECORD % (number, os.getpid()))


@cache
def _opened(ledger: str) -> int:
    return os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def told() -> tuple[str, str, Work]:
    """URL, queue and work."""
    url, queue, ledger, seconds = json.loads(os.environ[TOLD])
    return url, queue, Work(ledger, seconds)
