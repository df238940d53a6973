"""How bindings turn a client's error into one of ours."""

from __future__ import annotations

from typing import NamedTuple

from babelqueue_spark.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerFullError,
    BrokerUnreachableError,
    MessageTooLargeError,
    QueueForbiddenError,
    QueueNotFoundError,
)


class Advice(NamedTuple):
    """What an error of a client means, and what its user can do.

    Attributes:
        text: one line without a secret, to follow the broker's name.
        error: the class to raise.
    """

    text: str
    error: type[BrokerError] = BrokerError


def denied(text: str) -> Advice:
    """Return the login was refused."""
    return Advice(text, BrokerAuthenticationError)


def forbidden(text: str) -> Advice:
    """Return a permission on the queue is missing."""
    return Advice(text, QueueForbiddenError)


def unreachable(text: str) -> Advice:
    """No connection, no answer in time, or no TLS."""
    return Advice(text, BrokerUnreachableError)


def full(text: str) -> Advice:
    """No room, no quota, or throttled."""
    return Advice(text, BrokerFullError)


def not_found(text: str) -> Advice:
    """Return the queue does not exist."""
    return Advice(text, QueueNotFoundError)


def too_large(text: str) -> Advice:
    """Return the message exceeds a limit."""
    return Advice(text, MessageTooLargeError)


def failed(text: str) -> Advice:
    """Anything else."""
    return Advice(text)
