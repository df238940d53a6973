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
        standing: `granted`: the claim is ours; `held`: another owner's lease is running; `handled`: the
            message was handled before.
        ours: whether this owner handled it, in an earlier attempt.
        result: what the owner stored with it.
    """

    standing: Standing
    ours: bool = False
    result: bytes = b""


class IdempotencyStore(ABC):
    """The contract of a store.

    It travels to executors: it is made without a connection, pickles, and connects at the first call, in
    the process that makes it. Every call is atomic for each id, and raises `BrokerError` when the
    store is out of reach: then nothing is handled. Owners are 32 hex digits.
    """

    lease: float
    """Seconds for which a claim holds."""

    @abstractmethod
    def claim(self, ids: Sequence[str], owner: str) -> list[Record]:
        """Claim what nobody has handled or holds, for as long as the lease; a record for each id.

        What the same owner holds is granted again, with a new lease. `ids` are distinct.
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
