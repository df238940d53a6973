"""How bindings turn a client's error into one of ours."""

from __future__ import annotations

from functools import partial
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


denied = partial(Advice, error=BrokerAuthenticationError)
forbidden = partial(Advice, error=QueueForbiddenError)
unreachable = partial(Advice, error=BrokerUnreachableError)
full = partial(Advice, error=BrokerFullError)
missing = partial(Advice, error=QueueNotFoundError)
too_large = partial(Advice, error=MessageTooLargeError)
