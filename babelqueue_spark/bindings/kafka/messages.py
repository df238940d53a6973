"""Envelopes as Kafka records: the contract's headers, and what a reader makes of records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from babelqueue_spark.bindings.batches import deliveries, envelopes_of, milliseconds
from babelqueue_spark.bindings.headers import beside, projections
from babelqueue_spark.bindings.kafka.tiers import Tiers

_OF_A_TIER = ("bq-delay", "bq-original-topic")
_OVERHEAD = 1_024
"""Bytes of a record beside its texts, at most."""


class Record(NamedTuple):
    """A record to produce; a timestamp of 0 is the moment when that happens."""

    topic: str
    body: bytes
    headers: list[tuple[str, str | bytes | None]]
    key: str | None
    timestamp: int

    def size(self) -> int:
        """Return its bytes as far as limits count them, at most."""
        texts = (self.key or "", *chain.from_iterable(self.headers))
        return _OVERHEAD + len(self.body) + sum(map(_length, texts))


def _length(text: str | bytes | None) -> int:
    return len(text.encode() if isinstance(text, str) else text or b"")


def records(queue: str, messages: pa.RecordBatch, tiers: Tiers) -> Iterator[Record]:
    """`OUTGOING` messages as records: of the topic itself, or of the tier where they wait.

    A record that waits has the time when it began to, for that decides when it is due; any other has that of
    its envelope, unless that is to come: brokers refuse such records.
    """
    now = time.time_ns() // 1_000_000
    envelopes = envelopes_of(messages)
    columns = (messages.column(name).to_pylist() for name in ("body", "headers", "key", "delay"))
    rows = zip(*columns, _created_at(envelopes), projections(envelopes), strict=True)
    for body, headers, key, delay, created_at, found in rows:
        given = {name: value for name, value in headers or () if name and name not in _OF_A_TIER}
        topic = queue
        if delay and delay > 0:
            topic = tiers.topic(queue, delay)
            found |= {"bq-delay": str(delay), "bq-original-topic": queue}
        shown = list(beside(given, found).items())
        yield Record(topic, body, shown, key, min(created_at, now) if topic == queue else 0)


def received(messages: Sequence[Message]) -> pa.RecordBatch:
    """`DELIVERIES` out of records; a tombstone's body is empty, and of equal headers the first one counts.

    What of a key or a header is no UTF-8 is shown with backslashes.
    """
    return deliveries(
        len(messages),
        body=[message.value() or b"" for message in messages],
        headers=[_headers(message) for message in messages],
        id=[f"{message.partition()}:{message.offset()}" for message in messages],
        enqueued_at=[_timestamp(message) for message in messages],
        key=[_text(message.key()) for message in messages],
    )


def _created_at(envelopes: pa.RecordBatch) -> list[int]:
    """Milliseconds since 1970, 0 where an envelope has none."""
    moments = pc.struct_field(envelopes.column("meta"), "created_at")
    values: list[int] = pc.fill_null(milliseconds(moments), 0).to_pylist()
    return [max(0, value) for value in values]


def _headers(message: Message) -> list[tuple[str, str | None]] | None:
    found: dict[str, str | None] = {}
    pairs: Any = message.headers() or ()
    for name, value in pairs:
        found.setdefault(name, _text(value))
    return list(found.items()) or None


def _text(content: str | bytes | None) -> str | None:
    return content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else content


def _timestamp(message: Message) -> int | None:
    kind, moment = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else moment
