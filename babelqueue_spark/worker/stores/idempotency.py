"""Remember which messages were handled, by their `meta.id`, so that effects happen once.

A message is claimed under a lease before it is handled, and remembered afterwards. All workers share a store:
`RedisStore`, `SqlStore`, or another `IdempotencyStore`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

Standing = Literal["granted", "held", "handled"]


@dataclass(frozen=True)
class Record:
    """A store's answer to a claim.

    Attributes:
        standing: `granted`: the owner has the claim; `held`: another owner has it; `handled`: the message was
            handled before.
        ours: whether this owner handled the message, in an earlier attempt.
        result: what that owner stored with it.
    """

    standing: Standing
    ours: bool = False
    result: bytes = b""


class IdempotencyStore(ABC):
    """The contract of a store.

    It travels to executors: construction opens no connection, the store pickles, and the first call connects.
    Every call is atomic for each id. It raises `BrokerError` when the store is out of reach: then nothing is
    handled. Owners are 32 hex digits.
    """

    lease: float
    """Seconds for which a claim holds."""

    @abstractmethod
    def claim(self, ids: Sequence[str], owner: str) -> list[Record]:
        """Claim the messages that no owner has handled or claimed, under a lease; a record for each id.

        A claim of the same owner is granted again, with a new lease. `ids` are distinct.
        """

    @abstractmethod
    def remember(self, message_id: str, owner: str, result: bytes = b"") -> None:
        """Store durably that a message was handled, with a result."""

    @abstractmethod
    def release(self, ids: Sequence[str], owner: str) -> None:
        """End the owner's claims to messages that it did not handle; those of others stay."""

    @abstractmethod
    def forget(self, ids: Sequence[str]) -> None:
        """Delete what is known of these messages: the next delivery of each is handled."""

    @abstractmethod
    def close(self) -> None:
        """End the connection; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
