"""What one consumer received: messages, in whole entries."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import pulsar
import pyarrow as pa

from babelqueue_spark.bindings.pulsar.claims import ClaimRepeatedError, Claims
from babelqueue_spark.bindings.pulsar.messages import EntryId, Held, Unit, batch_size

_FIRST_MILLISECONDS = 500
"""How long a new consumer waits for its first message."""
_QUIET_MILLISECONDS = 100
"""How long it waits for a further one."""
_INCOMPLETE_MILLISECONDS = 5_000
"""How long it waits for the rest of a producer's batch, which comes at once where nobody has it already."""


class _Partial(NamedTuple):
    """What came of a producer's batch of this size: one of its messages, and what is claimed, by place."""

    size: int
    first: pulsar.Message
    arrived: dict[int, Held]

    def unit(self, entry: EntryId) -> Unit:
        return Unit.of(entry, self.first, list(self.arrived.values()))


class BufferedConsumer:
    """A consumer, and what it received.

    The broker keeps sending to a consumer that takes messages: what nobody claimed waits here, and goes
    back when the consumer is closed, uncounted.

    Attributes:
        holder: names the consumer in receipts.
    """

    def __init__(self, consumer: pulsar.Consumer, claims: Claims) -> None:
        self.holder = uuid.uuid4().hex
        self._consumer = consumer
        self._units: deque[Unit] = deque()
        self._partial: dict[EntryId, _Partial] = {}
        self._topics: dict[int, str] = {}
        self._claims = claims
        self._patience = _FIRST_MILLISECONDS

    def connected(self) -> bool:
        """Return whether the broker can reach the consumer now."""
        connected: bool = self._consumer.is_connected()
        return connected

    def held_by(self, receipts: Iterable[bytes]) -> pa.BooleanArray:
        """Return which receipts are of claims of this consumer."""
        holder = self.holder.encode()
        return pa.array([receipt.startswith(holder) for receipt in receipts], pa.bool_())

    def claim(self, messages: int, max_bytes: int) -> list[Unit]:
        """Entries that keep to both bounds, but for the first one; whole, as the broker gives them out.

        What a consumer just connected gets, a broker may send it twice: once by a read that was on its way
        when the last consumer before it left. Here it is claimed once.
        """
        claimed: dict[EntryId, Unit] = {}
        count = size = 0
        while count < messages and (unit := self._next()):
            if unit.entry in claimed:
                _assert_same(claimed[unit.entry], unit)
                continue
            count += len(unit)
            size += unit.size()
            if claimed and (count > messages or size > max_bytes):
                self._units.appendleft(unit)
                break
            claimed[unit.entry] = unit
        self._claims.hold(self.holder, claimed.values())
        return list(claimed.values())

    def waiting(self, enough: int) -> int:
        """Return how many messages wait here, unclaimed; no more are fetched than make `enough`."""
        count = sum(map(len, self._units))
        while count < enough and (unit := self._fetch()):
            self._units.append(unit)
            count += len(unit)
        return count

    def largest(self) -> int:
        """Messages in the largest entry that waits here."""
        return max(map(len, self._units), default=0)

    def put_back(self, unit: Unit) -> None:
        self._units.append(unit)

    def close(self) -> None:
        """Close the consumer: what was not acknowledged goes back to the subscription."""
        with suppress(pulsar.PulsarException):
            self._consumer.close()

    def _next(self) -> Unit | None:
        return self._units.popleft() if self._units else self._fetch()

    def _fetch(self) -> Unit | None:
        """Return the next entry that is complete; None when nothing comes.

        A producer's batch comes message by message. Where another consumer acknowledged a part of it, the
        rest is complete when nothing more comes.
        """
        receive, partial = self._consumer.receive, self._partial
        try:
            while True:
                message = receive(timeout_millis=_INCOMPLETE_MILLISECONDS if partial else self._patience)
                self._patience = _QUIET_MILLISECONDS
                place = message.message_id()
                entry, held = self._entry(message, place), Held.of(place.batch_index(), message)
                if held.position < 0:
                    return self._whole(Unit.of(entry, message, [held]))
                if entry not in partial:
                    partial[entry] = _Partial(batch_size(place), message, {})
                partial[entry].arrived[held.position] = held
                if len(partial[entry].arrived) == partial[entry].size:
                    return self._whole(partial.pop(entry).unit(entry))
        except pulsar.Timeout:
            self._patience = _QUIET_MILLISECONDS
            if not partial:
                return None
            entry = next(iter(partial))
            return self._whole(partial.pop(entry).unit(entry))

    def _entry(self, message: pulsar.Message, place: Any) -> EntryId:
        number = place.partition()
        if number not in self._topics:
            self._topics[number] = message.topic_name()
        return EntryId(self._topics[number], number, place.ledger_id(), place.entry_id())

    def _whole(self, unit: Unit) -> Unit:
        if self._claims.holds(self.holder, unit.entry):
            raise ClaimRepeatedError("a claim was given out again")
        return unit


def _assert_same(claimed: Unit, again: Unit) -> None:
    """`ClaimRepeatedError` where an entry came again with messages that are not claimed."""
    if {held.position for held in again.messages} - {held.position for held in claimed.messages}:
        raise ClaimRepeatedError("the rest of a batch came after a part of it was claimed")
