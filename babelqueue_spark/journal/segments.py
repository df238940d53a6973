"""Segments: what one partition of one batch claimed, and the record of its acknowledge."""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.storage import Store

CLOCK_SKEW = 5.0
"""Seconds by which two processes may differ on the broker's time before a lapsed claim seems a live one;
on their hosts' time where the broker tells none.
"""

FromQueue = tuple[str, pa.RecordBatch]
"""Deliveries, with the queue that they were claimed from."""

Identities = Callable[[str, pa.RecordBatch], list[str]]
"""Give each delivery of a queue the name that its redeliveries have, and no message of another queue has."""

_REDELIVERED_COLUMN = "redelivery"


def encode(value: Any) -> bytes:
    """Write a value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def folder_of(batch: int) -> str:
    """Return the folder of a batch."""
    return f"batches/{batch:010d}"


class SegmentState(Enum):
    """How far a reader task came; each kill -9 leaves its segment in one of these states."""

    ABSENT = "absent"
    """Nothing is journalled: claims that a dead task held lapse, and the broker delivers again."""
    JOURNALLED = "journalled"
    """The journal owns the messages; the broker may deliver them again, until they are acknowledged."""
    ACKNOWLEDGED = "acknowledged"
    """The broker was told; the acknowledge record lists what it may deliver again all the same."""


@dataclass(frozen=True)
class SegmentContent:
    """What one partition claimed, as its segment keeps it.

    Attributes:
        claimed: all deliveries, with the queue of each batch.
        redelivered: for each batch a mask; true for redeliveries of messages that are journalled elsewhere.
        lapses_at: seconds since 1970 by the broker's clock, if it tells it; before them it cannot have
            delivered the messages to anybody else.
    """

    claimed: Sequence[FromQueue]
    redelivered: Sequence[pa.BooleanArray]
    lapses_at: float

    @property
    def fresh(self) -> list[FromQueue]:
        """The deliveries that become rows."""
        return self._chosen([pc.invert(mask) for mask in self.redelivered])

    @property
    def redeliveries(self) -> list[FromQueue]:
        """The deliveries whose rows come from another segment."""
        return self._chosen(self.redelivered)

    def _chosen(self, masks: Iterable[pa.BooleanArray]) -> list[FromQueue]:
        chosen = [
            (queue, batch if mask.true_count == batch.num_rows else batch.filter(mask))
            for (queue, batch), mask in zip(self.claimed, masks, strict=True)
        ]
        return [(queue, batch) for queue, batch in chosen if batch.num_rows]


def names_of(parts: Iterable[FromQueue], identities: Identities) -> Counter[str]:
    """Count the identities of deliveries."""
    return Counter(name for queue, batch in parts for name in identities(queue, batch))


@dataclass(frozen=True)
class AckRecord:
    """What an acknowledge of a segment recorded.

    Attributes:
        claimed: how many messages were claimed, by queue, in the order of the plan.
        unacknowledged: identity → how often the broker may deliver that message again.
        redelivered: identity → how many deliveries were recognised as redeliveries of that message.
    """

    claimed: list[int]
    unacknowledged: Counter[str]
    redelivered: Counter[str]

    @classmethod
    def from_json(cls, content: bytes) -> AckRecord:
        stored = json.loads(content)
        return cls(stored["claimed"], Counter(stored["unacknowledged"]), Counter(stored["redelivered"]))

    def to_json(self) -> bytes:
        return encode(vars(self))

    def expected_redeliveries(self) -> Counter[str]:
        """Count what the broker may deliver again, less what was recognised; counts may be negative."""
        return _difference(self.unacknowledged, self.redelivered)


SILENT_RECORD = len(AckRecord([99_999], Counter(), Counter()).to_json())
"""Most bytes of a record that says nothing but how much one queue gave."""


class Segment:
    """The deliveries of one partition of one batch.

    Attributes:
        place: numbers of the batch and of the partition.
    """

    def __init__(self, store: Store, batch: int, partition: int) -> None:
        self.place = batch, partition
        self._store = store
        self._stem = f"{folder_of(batch)}/{partition:05d}"

    def load(self) -> tuple[SegmentState, SegmentContent | None]:
        """Read how far an attempt came, and what it claimed; the content is None only if it is `ABSENT`."""
        content = self.read()
        if content is None:
            return SegmentState.ABSENT, None
        return SegmentState.ACKNOWLEDGED if self.acknowledged() else SegmentState.JOURNALLED, content

    def read(self) -> SegmentContent | None:
        """Read what was claimed, or None if no attempt has written the segment."""
        file = self._store.read_arrow(f"{self._stem}.arrow")
        if file is None:
            return None
        queues = json.loads(file.metadata[b"queues"])
        claimed = [batch.drop_columns([_REDELIVERED_COLUMN]) for batch in file.batches]
        redelivered = [batch.column(_REDELIVERED_COLUMN) for batch in file.batches]
        return SegmentContent(
            list(zip(queues, claimed, strict=True)), redelivered, float(file.metadata[b"lapses_at"])
        )

    def write(self, content: SegmentContent, schema: pa.Schema, until: float = math.inf) -> bool:
        """Journal what was claimed (batches of `schema`), whole and durable; False if another was first.

        `until` is a deadline, as for `Store.create`.
        """
        queues = json.dumps([queue for queue, _ in content.claimed])
        metadata = {"queues": queues, "lapses_at": repr(content.lapses_at), "writer": uuid.uuid4().hex}
        schema = schema.append(pa.field(_REDELIVERED_COLUMN, pa.bool_())).with_metadata(metadata)
        batches = (
            pa.RecordBatch.from_arrays([*batch.columns, mask], schema=schema)
            for (_, batch), mask in zip(content.claimed, content.redelivered, strict=True)
        )
        return self._store.create_arrow(f"{self._stem}.arrow", batches, schema, until)

    def discard(self) -> None:
        """Delete the segment, which was written too late to be read."""
        self._store.remove_file(f"{self._stem}.arrow")

    def acknowledged(self) -> bool:
        """Return whether an acknowledge is recorded, so that it need not be repeated."""
        return self._store.read(f"{self._stem}.ack") is not None

    def mark_acknowledged(
        self, claimed: list[int], unacknowledged: Iterable[str] = (), redelivered: Iterable[str] = ()
    ) -> None:
        """Record the acknowledge of what was claimed, so many messages from each queue of the plan.

        The broker may deliver the `unacknowledged` again; the `redelivered` were such redeliveries. Two
        attempts may both acknowledge: a message is unacknowledged only if neither could remove it.
        """
        record = AckRecord(claimed, Counter(unacknowledged), Counter(redelivered))
        if self._store.create(f"{self._stem}.ack", record.to_json()):
            return
        earlier = self.ack_record()
        both = record.unacknowledged & (earlier.unacknowledged if earlier else Counter())
        self._store.replace(f"{self._stem}.ack", replace(record, unacknowledged=both).to_json())

    def ack_record(self) -> AckRecord | None:
        """Read what `mark_acknowledged` recorded; None before."""
        content = self._store.read(f"{self._stem}.ack")
        return AckRecord.from_json(content) if content is not None else None

    def expected_redeliveries(self, identities: Identities, now: float) -> Counter[str]:
        """Count how often the broker may deliver each message again (positive), or has done so (negative)."""
        record = self.ack_record()
        if record is not None:
            return record.expected_redeliveries()
        content = self.read()
        if content is None:
            return Counter()
        lapsed = content.lapses_at < now + CLOCK_SKEW
        expected = names_of(content.claimed if lapsed else [], identities)
        return _difference(expected, names_of(content.redeliveries, identities))


def _difference(left: Counter[str], right: Counter[str]) -> Counter[str]:
    """Subtract, and keep negative counts."""
    found = Counter(left)
    found.subtract(right)
    return found
