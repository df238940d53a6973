"""The numbered messages of a trial, and what is to become of each."""

from __future__ import annotations

import re

from babelqueue.codec import EnvelopeCodec

READ, WORK, REPLIES = "chaos-read", "chaos-work", "chaos-replies"
"""Queues: of the stream, of the worker, and of what its handlers return."""
PLAIN, FRAMES, REPLY = "urn:babel:chaos:plain", "urn:babel:chaos:frames", "urn:babel:chaos:reply"
"""URNs: for a message handler, for a DataFrame handler, and of what the first returns."""
_NUMBER = re.compile(rb'"n": ?(\d+)')


def body(number: int, queue: str) -> bytes:
    """One message: an envelope, but every fiftieth is poison."""
    if is_poison(number):
        return b'{"n": %d}' % number
    urn = FRAMES if number % 10 == 9 else PLAIN
    return str(EnvelopeCodec.encode(EnvelopeCodec.make(urn, {"n": number}, queue=queue))).encode()


def number_of(content: bytes) -> int:
    """The number in a body, of whatever kind; `ValueError` for a body of nobody's."""
    found = _NUMBER.search(content)
    if found is None:
        raise ValueError(f"a body without a number: {content[:200]!r}")
    return int(found[1])


def is_poison(number: int) -> bool:
    """Whether the message is not an envelope."""
    return number % 50 == 0


def is_rejected(number: int) -> bool:
    """Whether the message handler rejects it."""
    return number % 50 == 7


def is_retried(number: int) -> bool:
    """Whether the message handler fails when it gets the message with no attempts."""
    return number % 25 == 3


def is_replied(number: int) -> bool:
    """Whether the message handler returns another message."""
    return number % 10 == 1


def is_dead(number: int) -> bool:
    """Whether the worker is to make a dead letter of it."""
    return is_poison(number) or is_rejected(number)
