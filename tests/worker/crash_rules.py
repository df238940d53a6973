"""Which messages of a crash test fail, and which one the processes die of."""

from __future__ import annotations

from datetime import UTC, datetime

MESSAGES = 2_000
"""In each of the queues of a batch."""
LAST_ATTEMPT = 2
DEADLY = 1_000
"""Handling it, a process dies where the crash is armed for handlers."""


def fails(number: int, attempts: int) -> bool:
    """Of a hundred messages five fail: four the first time, one whenever it comes."""
    return number % 100 == 7 or (number % 25 == 3 and attempts == 0)


def replies(number: int) -> bool:
    """Whether the handler of this message returns another one."""
    return number % 10 == 1


REQUEST = "urn:babel:orders:price"


def asks(number: int) -> bool:
    """Whether this message is a request."""
    return number % 4 == 0


def raises(number: int) -> bool:
    """Whether a subscriber raises for this message."""
    return number % 50 == 7


NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)
"""Scheduled messages are due so many seconds after it as their number says."""


def cancels(number: int) -> bool:
    """Whether the handler of this message cancels what the one before it scheduled."""
    return number % 6 == 5
