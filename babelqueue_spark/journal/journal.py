"""The journal: a write-ahead log of what was claimed from a queue, kept until Spark has finished with it.

    <journalLocation>/
      journal.json               format and id of this journal
      owner.json                 the query that may plan and commit
      commits/0000000006         Spark has finished batch 6; what was cleaned, what may still be redelivered
      batches/0000000007/
        plan.json                what batch 7 reads; written once, before Spark hears of the batch
        00000.arrow              what partition 0 claimed; written once, before the acknowledge
        00000.ack                partition 0 is acknowledged; lists what the broker will deliver again

Batch numbers start at 1 and grow by one. The driver writes plans and commits, executors segments and
acknowledge records. Only `owner.json` and acknowledge records are ever replaced. In files, `lost` counts
unacknowledged messages, and `repeated` redeliveries.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.errors import JournalError, JournalTakenOverError
from babelqueue_spark.journal.stores import Store, open_store

FORMAT = 1
CLOCK_SKEW = 5.0
"""Seconds by which the clocks of two hosts may differ before a lapsed claim is taken for a live one."""
REDELIVERY_MEMORY = 3600.0
"""Seconds for which a message that may still be redelivered is remembered after its batch was committed."""

Identities = Callable[[str, pa.RecordBatch], list[str]]
"""Give each delivery of a queue the name that its redeliveries have, and no message of another queue has."""

_REDELIVERED_COLUMN = "repeated"


@dataclass
class State:
    """How far the owner is.

    Attributes:
        committed: last batch that Spark has finished.
        cleaned: last batch whose segments may be gone.
        unacknowledged: identity of a message the broker may still redeliver → [count, epoch seconds noted].
    """

    committed: int = 0
    cleaned: int = 0
    unacknowledged: dict[str, tuple[int, float]] = field(default_factory=dict)


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
        queue: where it was claimed.
        claimed: all deliveries.
        redelivered: for each batch a mask; true for redeliveries of messages that are journalled elsewhere.
        lapses_at: epoch seconds; before them the broker cannot have delivered the messages to anybody else.
    """

    queue: str
    claimed: Sequence[pa.RecordBatch]
    redelivered: Sequence[pa.BooleanArray]
    lapses_at: float

    @property
    def fresh(self) -> list[pa.RecordBatch]:
        """The deliveries that become rows."""
        return self._chosen([pc.invert(mask) for mask in self.redelivered])

    @property
    def redeliveries(self) -> list[pa.RecordBatch]:
        """The deliveries whose rows come from another segment."""
        return self._chosen(self.redelivered)

    def names(self, batches: Iterable[pa.RecordBatch], identities: Identities) -> Counter[str]:
        """Count the identities of some of the deliveries."""
        return Counter(name for batch in batches for name in identities(self.queue, batch))

    def _chosen(self, masks: Iterable[pa.BooleanArray]) -> list[pa.RecordBatch]:
        chosen = [
            batch if mask.true_count == batch.num_rows else batch.filter(mask)
            for batch, mask in zip(self.claimed, masks, strict=True)
        ]
        return [batch for batch in chosen if batch.num_rows]


@dataclass(frozen=True)
class AckRecord:
    """What an acknowledge of a segment recorded.

    Attributes:
        claimed: how many messages were claimed.
        unacknowledged: identity → how often the broker may deliver that message again.
        redelivered: identity → how many deliveries were recognised as redeliveries of that message.
    """

    claimed: int
    unacknowledged: Counter[str]
    redelivered: Counter[str]

    @classmethod
    def from_json(cls, content: bytes) -> AckRecord:
        """Read a record as `to_json` wrote it."""
        stored = json.loads(content)
        return cls(stored["claimed"], Counter(stored["lost"]), Counter(stored["repeated"]))

    def to_json(self) -> bytes:
        """Write the record, with the names that the format gives to its counts."""
        return _encode({"claimed": self.claimed, "lost": self.unacknowledged, "repeated": self.redelivered})

    def expected_redeliveries(self) -> Counter[str]:
        """Count what the broker may deliver again, less what was recognised; counts may be negative."""
        return _difference(self.unacknowledged, self.redelivered)


class Segment:
    """The deliveries of one partition of one batch."""

    def __init__(self, store: Store, batch: int, partition: int) -> None:
        self._store = store
        self._stem = f"{_folder(batch)}/{partition:05d}"

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
        claimed = [batch.drop_columns([_REDELIVERED_COLUMN]) for batch in file.batches]
        redelivered = [batch.column(_REDELIVERED_COLUMN) for batch in file.batches]
        return SegmentContent(
            file.metadata[b"queue"].decode(), claimed, redelivered, float(file.metadata[b"lapses_at"])
        )

    def write(self, content: SegmentContent, schema: pa.Schema) -> bool:
        """Journal what was claimed (batches of `schema`), whole and durable; False if another was first."""
        writer_id = uuid.uuid4().hex
        metadata = {"queue": content.queue, "lapses_at": repr(content.lapses_at), "writer": writer_id}
        schema = schema.append(pa.field(_REDELIVERED_COLUMN, pa.bool_())).with_metadata(metadata)
        batches = (
            pa.RecordBatch.from_arrays([*batch.columns, mask], schema=schema)
            for batch, mask in zip(content.claimed, content.redelivered, strict=True)
        )
        created = self._store.create_arrow(f"{self._stem}.arrow", batches, schema)
        # A store may answer a request it repeated by itself with "exists", though the file is ours.
        return created or self._writer() == writer_id.encode()

    def _writer(self) -> bytes | None:
        file = self._store.read_arrow(f"{self._stem}.arrow")
        return None if file is None else file.metadata[b"writer"]

    def discard(self) -> None:
        """Delete the segment, which was written too late to be read."""
        self._store.remove_file(f"{self._stem}.arrow")

    def acknowledged(self) -> bool:
        """Whether an acknowledge is recorded, so that it need not be repeated."""
        return self._store.read(f"{self._stem}.ack") is not None

    def mark_acknowledged(
        self, claimed: int, unacknowledged: Iterable[str] = (), redelivered: Iterable[str] = ()
    ) -> None:
        """Record the acknowledge of `claimed` messages.

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
        expected = content.names(content.claimed if lapsed else [], identities)
        return _difference(expected, content.names(content.redeliveries, identities))


class Journal:
    """One journal directory. Cheap to make; executors use only `segment` and `expected_redeliveries`."""

    def __init__(self, location: str) -> None:
        self._store = open_store(location)
        self.location = self._store.location
        self._owner: str | None = None
        self._id: str | None = None

    @property
    def id(self) -> str:
        """The id that was made with this journal; another one means that the directory was replaced."""
        if self._id is None:
            self._id = self._open()
        return self._id

    def _open(self) -> str:
        content = self._store.read("journal.json")
        if content is None:
            self._store.probe()
            self._store.create("journal.json", _encode({"format": FORMAT, "id": uuid.uuid4().hex}))
            content = self._store.read("journal.json")
        header = json.loads(content or b"{}")
        if header.get("format") != FORMAT:
            raise JournalError(
                f"journal {self.location} has format {header.get('format')}, this release reads "
                f"format {FORMAT}: use the release that wrote it, or another journalLocation"
            )
        return str(header["id"])

    # -- ownership ---------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Become the one query that plans and commits; the query before it fails at its next step."""
        owner = {
            "owner": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._store.replace("owner.json", _encode(owner))
        self._owner = str(owner["owner"])
        self._remove_cleaned(self.state().cleaned)

    def check_owner(self) -> None:
        """Raise `JournalTakenOverError` if another query has taken the journal over since `take_over`."""
        owner = json.loads(self._store.read("owner.json") or b"{}")
        if self._owner is None or owner.get("owner") != self._owner:
            raise JournalTakenOverError(
                f"journal {self.location} was taken over by another query (host {owner.get('host')}, "
                f"process {owner.get('pid')}, since {owner.get('since')}): a journal serves one query; "
                "stop one of the two or give it a journalLocation of its own"
            )

    # -- plans -------------------------------------------------------------------------------------

    def plan(self, batch: int) -> dict[str, Any] | None:
        """Read the recorded plan of a batch, or None."""
        content = self._store.read(f"{_folder(batch)}/plan.json")
        return json.loads(content) if content is not None else None

    def record_plan(self, batch: int, plan: dict[str, Any]) -> dict[str, Any]:
        """Write the plan of a batch, unless it has one; return the plan that it has then."""
        self._store.create(f"{_folder(batch)}/plan.json", _encode(plan))
        recorded = self.plan(batch)
        if recorded is None:
            raise JournalError(f"journal {self.location} lost the plan of batch {batch} while it was written")
        return recorded

    def last_planned(self) -> int:
        """Find the highest batch that has a plan, or else the last committed one."""
        planned = [int(name) for name in self._store.names("batches") if name.isdigit()]
        return max([self.state().committed, *planned])

    # -- segments ----------------------------------------------------------------------------------

    def segment(self, batch: int, partition: int) -> Segment:
        """The segment of one partition of one batch, written or not."""
        return Segment(self._store, batch, partition)

    def expected_redeliveries(
        self, after: int, batch: int, partition: int, identities: Identities, now: float
    ) -> Counter[str]:
        """Count the identities of journalled messages that the broker may deliver again.

        They come from segments of the batches `after + 1 … batch` (except `partition` of `batch`) whose claim
        may have lapsed before the acknowledge, from messages that an acknowledge could not remove, and from
        those that earlier batches left unacknowledged; less the redeliveries recognised since.
        """
        found = Counter({name: count for name, (count, _) in self.state().unacknowledged.items()})
        for number in range(after + 1, batch + 1):
            for index in _partitions(self._store.names(_folder(number)), ".arrow"):
                if (number, index) != (batch, partition):
                    found.update(self.segment(number, index).expected_redeliveries(identities, now))
        return +found

    # -- committing --------------------------------------------------------------------------------

    def state(self) -> State:
        """Read what has been committed and cleaned so far."""
        seen: list[int] = []
        while (numbers := self._commits()) != seen:
            for number in reversed(numbers):
                content = self._store.read(_commit(number))
                if content is not None:
                    stored = json.loads(content)
                    left = {name: (count, noted) for name, (count, noted) in stored["lost"].items()}
                    return State(committed=number, cleaned=stored["cleaned"], unacknowledged=left)
            seen = numbers  # removed since they were listed, because a later one came; or torn
        return State()

    def commit(self, batch: int, retention: float = 0.0) -> None:
        """Record that Spark has finished every batch up to `batch`; clean those planned `retention` s ago."""
        before = self.state()
        if batch <= before.committed:
            return
        now = time.time()
        cleaned = before.cleaned
        while cleaned < batch and self._expired(cleaned + 1, now - retention):
            cleaned += 1
        after = {"cleaned": cleaned, "lost": self._still_unacknowledged(before, batch, now)}
        self._store.create(_commit(batch), _encode(after))
        for number in self._commits():
            if number < batch:
                self._store.remove_file(_commit(number))
        for number in range(before.cleaned + 1, cleaned + 1):
            self._store.remove(_folder(number))

    def _commits(self) -> list[int]:
        return sorted(int(name) for name in self._store.names("commits") if name.isdigit())

    def _still_unacknowledged(self, state: State, batch: int, now: float) -> dict[str, tuple[int, float]]:
        oldest = now - REDELIVERY_MEMORY
        remembered = {name: entry for name, entry in state.unacknowledged.items() if entry[1] > oldest}
        counts = Counter({name: count for name, (count, _) in remembered.items()})
        for number in range(state.committed + 1, batch + 1):
            for index in _partitions(self._store.names(_folder(number)), ".ack"):
                record = self.segment(number, index).ack_record()
                if record is not None:
                    counts.update(record.expected_redeliveries())
        return {
            name: (count, remembered.get(name, (0, now))[1]) for name, count in counts.items() if count > 0
        }

    def _expired(self, batch: int, before: float) -> bool:
        plan = self.plan(batch)
        return plan is None or float(plan.get("planned_at", 0)) <= before

    def _remove_cleaned(self, cleaned: int) -> None:
        for name in self._store.names("batches"):
            if name.isdigit() and int(name) <= cleaned:
                self._store.remove(f"batches/{name}")


def _folder(batch: int) -> str:
    return f"batches/{batch:010d}"


def _commit(batch: int) -> str:
    return f"commits/{batch:010d}"


def _partitions(names: Iterable[str], suffix: str) -> list[int]:
    return sorted(int(name.removesuffix(suffix)) for name in names if name.endswith(suffix))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _difference(left: Counter[str], right: Counter[str]) -> Counter[str]:
    """Subtract, and keep negative counts."""
    found = Counter(left)
    found.subtract(right)
    return found
