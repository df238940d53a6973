"""Envelopes as Pulsar messages: the contract's properties, and what a reader makes of messages."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import pulsar
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import deliveries, envelopes_of, milliseconds
from babelqueue_spark.bindings.headers import beside, projections

_BATCH_SIZE = 6
"""The field of a serialised message id with the number of messages in the producer's batch."""
_DELAY = "bq-delay"
_MOST_DIGITS = 18
"""What a delay of more has is no delay."""


class EntryId(NamedTuple):
    """What the broker stores, gives out and acknowledges as one: a message, or a producer's batch of them."""

    topic: str
    partition: int
    ledger: int
    number: int

    def message_id(self) -> pulsar.MessageId:
        """Return the id that acknowledges all of it."""
        return pulsar.MessageId(self.partition, self.ledger, self.number, -1)


class Held(NamedTuple):
    """What a claim takes out of a message.

    Attributes:
        position: its place in the producer's batch; -1 outside of one.
    """

    position: int
    body: bytes
    headers: dict[str, str]
    key: str | None

    @classmethod
    def of(cls, position: int, message: pulsar.Message) -> Held:
        return cls(position, message.data(), _properties(message), _key(message))


@dataclass(slots=True)
class Unit:
    """The messages that were left of an entry, which are claimed together.

    Attributes:
        published: when, in milliseconds; None = not in the years 1 to 9999.
    """

    entry: EntryId
    published: int | None
    redeliveries: int
    messages: list[Held]

    @classmethod
    def of(cls, entry: EntryId, message: pulsar.Message, messages: list[Held]) -> Unit:
        return cls(entry, message.publish_timestamp(), message.redelivery_count(), messages)

    def __len__(self) -> int:
        return len(self.messages)

    def size(self) -> int:
        return sum([len(held.body) for held in self.messages])


class Claim(NamedTuple):
    """Who claimed what: with a message's place in the entry, its receipt.

    Attributes:
        holder: names the consumer that claimed it.
        total: how many messages of it were claimed, which is all that were left.
    """

    holder: str
    entry: EntryId
    total: int

    @classmethod
    def decode(cls, text: bytes) -> Claim:
        """Out of what its receipts begin with, as `claimed` writes it."""
        holder, partition, ledger, number, total, topic = text.decode().split(" ", 5)
        return cls(holder, EntryId(topic, int(partition), int(ledger), int(number)), int(total))


class Part(NamedTuple):
    """Of what a claim holds, the messages in these places."""

    claim: Claim
    places: list[int]


def entry_of(message: pulsar.Message) -> EntryId:
    """Return where a message lies."""
    place = message.message_id()
    return EntryId(message.topic_name(), place.partition(), place.ledger_id(), place.entry_id())


def due(message: pulsar.Message) -> bool:
    """Return whether its delay is over, as far as the property that mirrors it tells."""
    delay = _properties(message).get(_DELAY, "")
    waits = int(delay) if delay.isdecimal() and len(delay) <= _MOST_DIGITS else 0
    return bool(message.publish_timestamp() + waits <= time.time() * 1000)


def batch_size(place: Any) -> int:
    """Return how many messages the producer sent as the entry."""
    fields = _varints(place.serialize())
    return dict(zip(fields, fields, strict=False)).get(_BATCH_SIZE << 3, 1)


def claim_text(receipt: bytes) -> bytes:
    """Return the encoded claim of a receipt."""
    return receipt.rpartition(b" ")[0]


def split(receipt: bytes) -> tuple[bytes, int]:
    """Return the encoded claim of a receipt, and its message's place in the entry."""
    text, _, place = receipt.rpartition(b" ")
    return text, int(place)


def claims_of(receipts: Iterable[bytes]) -> dict[bytes, Part]:
    """Return the claims that receipts are of, by their encoded form, and the places of the messages."""
    parts: dict[bytes, Part] = {}
    for text, place in map(split, receipts):
        part = parts.get(text)
        if part is None:
            part = parts[text] = Part(Claim.decode(text), [])
        part.places.append(place)
    return parts


def claimed(units: Sequence[Unit], holder: str | None) -> pa.RecordBatch:
    """`DELIVERIES` of entries; receipts are null without a holder."""
    sizes = [len(unit.messages) for unit in units]
    rows = np.repeat(np.arange(len(units)), sizes)
    positions, bodies, headers, keys = zip(*(held for unit in units for held in unit.messages), strict=True)
    topics, *numbers = zip(*(unit.entry for unit in units), strict=True)
    places = _texts(positions)
    partitions, ledgers, entries = map(_texts, numbers)
    receipts = None
    if holder:
        claims = _joined([holder, partitions, ledgers, entries, _texts(sizes), pa.array(topics)], " ")
        receipts = _joined([claims.take(rows), places], " ")
    counts = [unit.redeliveries + 1 if unit.redeliveries else None for unit in units for _ in unit.messages]
    return deliveries(
        len(bodies),
        body=bodies,
        headers=_headers(headers),
        id=_joined([_joined([ledgers, entries, partitions], ":").take(rows), places], ":"),
        count=counts,
        redelivered=[None if count is None else True for count in counts],
        enqueued_at=[unit.published for unit in units for _ in unit.messages],
        key=keys,
        receipt=receipts,
    )


def units_of(batch: pa.RecordBatch) -> Iterator[Unit]:
    """Return the entries of `DELIVERIES` with receipts, without those of which a part is missing."""
    columns = (batch.column(name) for name in ("receipt", "body", "headers", "key", "enqueued_at", "count"))
    receipts, *others = map(_plain, columns)
    rows: dict[bytes, list[tuple[Any, ...]]] = defaultdict(list)
    for text, *values in zip(map(claim_text, receipts), *others, strict=True):
        rows[text].append(tuple(values))
    for text, (claim, places) in claims_of(receipts).items():
        found = rows[text]
        if len(found) == claim.total:
            *_, published, count = found[0]
            messages = [
                Held(place, body, dict(given or ()), key)
                for place, (body, given, key, *_) in zip(places, found, strict=True)
            ]
            yield Unit(claim.entry, published, (count or 1) - 1, messages)


def again(batch: pa.RecordBatch) -> Iterator[tuple[bytes, dict[str, str], str | None, int]]:
    """`DELIVERIES` as they are sent again: body, properties, key and delay, which is over."""
    columns = (batch.column(name).to_pylist() for name in ("body", "headers", "key"))
    for body, given, key in zip(*columns, strict=True):
        yield body, {name: value for name, value in given or () if name != _DELAY}, key, 0


def properties(messages: pa.RecordBatch) -> Iterator[dict[str, str]]:
    """Yield the properties of `OUTGOING` messages: headers, and over them what stands in the body."""
    headers = messages.column("headers").to_pylist()
    delays = messages.column("delay").to_pylist()
    found_in = projections(envelopes_of(messages))
    for found, given, delay in zip(found_in, headers, delays, strict=True):
        made = {name: value for name, value in given or () if name and value is not None}
        if found:
            made = beside(made, {"bq-attempts": "0", **found})
        if delay and delay > 0:
            made[_DELAY] = str(delay)
        yield made


def _plain(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = milliseconds(column)
    values: list[Any] = column.to_pylist()
    return values


def _texts(numbers: Sequence[int]) -> pa.StringArray:
    return pa.array(numbers, pa.int64()).cast(pa.string())


def _joined(parts: Sequence[pa.StringArray | str], separator: str) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, separator)


def _headers(given: Sequence[Mapping[str, str]]) -> pa.MapArray:
    """Properties as maps; null where there are none."""
    ends = accumulate(map(len, given), initial=0)
    offsets = [end if some else None for end, some in zip(ends, [*given, True], strict=True)]
    names = list(chain.from_iterable(given))
    values = list(chain.from_iterable(some.values() for some in given))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )


def _properties(message: pulsar.Message) -> dict[str, str]:
    try:
        found: dict[str, str] = message.properties()
        return found
    except UnicodeDecodeError:  # of a sender that is no SDK: the client has no other way to read them
        return {}


def _key(message: pulsar.Message) -> str | None:
    try:
        return message.partition_key() or None
    except UnicodeDecodeError:
        return None


def _varints(text: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in text:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
