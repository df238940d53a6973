"""The journal: what has been claimed from a queue, kept until Spark proves that it is finished with it.

    <journalLocation>/
      journal.json               format and identity of this journal
      owner.json                 the query that may plan and commit
      state.json                 committed and cleaned batch numbers; messages still to be redelivered
      batches/0000000007/
        plan.json                what batch 7 reads; written once, before Spark hears of the batch
        00000.arrow              the deliveries of partition 0; written once, before the acknowledge
        00000.ack                partition 0 is acknowledged; lists what the broker will deliver again
        00000.drop               redeliveries that partition 0 recognised and did not journal again

Batch numbers start at 1 and grow by one. The driver writes plans and state, executors segments and
marks. A file that exists is never changed, `owner.json`, `state.json` and marks excepted.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from babelqueue_spark.errors import JournalError
from babelqueue_spark.journal.stores import Store, open_store

FORMAT = 1
CLOCK_SKEW = 5.0
"""Seconds by which the clocks of two hosts may differ before a lapsed claim is taken for a live one."""
REDELIVERY_MEMORY = 3600.0
"""Seconds for which a message that may still be redelivered is remembered after its batch was committed."""

Identities = Callable[[pa.RecordBatch], list[str]]


@dataclass
class State:
    """What the owner has proved.

    Attributes:
        committed: last batch that Spark has finished.
        cleaned: last batch whose segments are gone.
        lost: identity of a message the broker may still redeliver → [count, epoch seconds noted].
    """

    committed: int = 0
    cleaned: int = 0
    lost: dict[str, tuple[int, float]] = field(default_factory=dict)


class Segment:
    """The deliveries of one partition of one batch."""

    def __init__(self, store: Store, batch: int, partition: int) -> None:
        self._store = store
        self._stem = f"{_folder(batch)}/{partition:05d}"

    def read(self) -> list[pa.RecordBatch] | None:
        """The deliveries as journalled, or None when no attempt has written the segment."""
        content = self._store.read(f"{self._stem}.arrow")
        if content is None:
            return None
        with pa.ipc.open_file(pa.BufferReader(content)) as reader:
            return [reader.get_batch(i) for i in range(reader.num_record_batches)]

    def write(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, lapses_at: float) -> bool:
        """Journal the deliveries whole and durable; False when another attempt was first.

        `lapses_at`: epoch seconds before which the broker cannot have delivered them to anybody else.
        """
        writer_id = uuid.uuid4().hex
        schema = schema.with_metadata({"lapses_at": repr(lapses_at), "writer": writer_id})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            for batch in batches:
                writer.write_batch(batch)
        created = self._store.create(f"{self._stem}.arrow", sink.getvalue().to_pybytes())
        # A store may answer a request it repeated by itself with "exists", though the file is ours.
        return created or self._metadata().get(b"writer") == writer_id.encode()

    def acknowledged(self) -> bool:
        """Whether the broker has been told; its acknowledge need not be repeated."""
        return self._store.read(f"{self._stem}.ack") is not None

    def discard(self) -> None:
        """Delete the segment, which was written too late to be read."""
        self._store.remove_file(f"{self._stem}.arrow")

    def mark_acknowledged(self, claimed: int, lost: Iterable[str]) -> None:
        """Record the acknowledge of `claimed` messages; `lost` are those the broker may deliver again.

        Two attempts may both acknowledge: a message is lost only if neither could.
        """
        counts = Counter(lost)
        if not self._store.create(f"{self._stem}.ack", _encode({"claimed": claimed, "lost": counts})):
            counts &= self.lost()
            self._store.replace(f"{self._stem}.ack", _encode({"claimed": claimed, "lost": counts}))

    def lost(self) -> Counter[str]:
        """What the acknowledge could not remove from the broker."""
        return Counter(self._mark().get("lost", {}))

    def claimed(self) -> int:
        """How many messages were claimed, recognised redeliveries included; known once acknowledged."""
        return int(self._mark().get("claimed", 0))

    def _mark(self) -> dict[str, Any]:
        return json.loads(self._store.read(f"{self._stem}.ack") or b"{}")  # type: ignore[no-any-return]

    def mark_dropped(self, identities: Iterable[str]) -> None:
        """Record the redeliveries that were recognised while this segment was claimed."""
        self._store.replace(f"{self._stem}.drop", _encode(Counter(identities)))

    def lapses_at(self) -> float:
        """The `lapses_at` the segment was written with; infinite when it is not written."""
        return float(self._metadata().get(b"lapses_at", "inf"))

    def _metadata(self) -> dict[bytes, bytes]:
        content = self._store.read(f"{self._stem}.arrow")
        if content is None:
            return {}
        with pa.ipc.open_file(pa.BufferReader(content)) as reader:
            return dict(reader.schema.metadata)


class Journal:
    """One journal directory. Cheap to make; executors use only `segment` and `redeliveries`."""

    def __init__(self, location: str) -> None:
        self._store = open_store(location)
        self.location = self._store.location
        self._owner: str | None = None
        self._identity: str | None = None

    @property
    def identity(self) -> str:
        """The id of this journal, made with it; another one means that the directory was replaced."""
        if self._identity is None:
            with self._store.explained():
                self._identity = self._open()
        return self._identity

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
        """Become the one query that plans and commits; whoever was it before fails at its next step."""
        owner = {
            "owner": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with self._store.explained():
            self._store.replace("owner.json", _encode(owner))
            self._owner = str(owner["owner"])
            self._remove_cleaned(self.state().cleaned)

    def check_owner(self) -> None:
        """`JournalError` when another query has taken the journal over since `take_over`."""
        owner = json.loads(self._store.read("owner.json") or b"{}")
        if self._owner is None or owner.get("owner") != self._owner:
            raise JournalError(
                f"journal {self.location} was taken over by another query (host {owner.get('host')}, "
                f"process {owner.get('pid')}, since {owner.get('since')}): a journal serves one query; "
                "stop one of the two or give it a journalLocation of its own"
            )

    # -- plans -------------------------------------------------------------------------------------

    def plan(self, batch: int) -> dict[str, Any] | None:
        """The plan of a batch as recorded, or None."""
        content = self._store.read(f"{_folder(batch)}/plan.json")
        return json.loads(content) if content is not None else None

    def record_plan(self, batch: int, plan: dict[str, Any]) -> dict[str, Any]:
        """Write the plan of a batch; the one that stands afterwards, which may be an earlier one."""
        with self._store.explained():
            self._store.create(f"{_folder(batch)}/plan.json", _encode(plan))
        recorded = self.plan(batch)
        if recorded is None:
            raise JournalError(f"journal {self.location} lost the plan of batch {batch} while it was written")
        return recorded

    def last_planned(self) -> int:
        """The highest batch that has a plan, or the last committed one."""
        planned = [int(name) for name in self._store.names("batches") if name.isdigit()]
        return max([self.state().committed, *planned])

    # -- segments ----------------------------------------------------------------------------------

    def segment(self, batch: int, partition: int) -> Segment:
        """The segment of one partition of one batch, written or not."""
        return Segment(self._store, batch, partition)

    def redeliveries(
        self, after: int, batch: int, partition: int, identities: Identities, now: float
    ) -> Counter[str]:
        """Identities of messages that are journalled already and that the broker may deliver again.

        They come from segments of the batches `after + 1 … batch` (except the asking one) that were
        not acknowledged though their claim may have lapsed, from what an acknowledge could not
        remove, and from what earlier batches left behind; less what was recognised since.
        """
        found = Counter({name: count for name, (count, _) in self.state().lost.items()})
        dropped: Counter[str] = Counter()
        for number in range(after + 1, batch + 1):
            names = set(self._store.names(_folder(number)))
            for index in _partitions(names, ".drop"):
                dropped += _counter(self._store.read(f"{_folder(number)}/{index:05d}.drop"))
            for index in _partitions(names, ".arrow"):
                if (number, index) == (batch, partition):
                    continue
                segment = self.segment(number, index)
                if f"{index:05d}.ack" in names:
                    found += segment.lost()
                elif segment.lapses_at() < now + CLOCK_SKEW:
                    for deliveries in segment.read() or []:
                        found.update(identities(deliveries))
        return found - dropped

    # -- committing --------------------------------------------------------------------------------

    def state(self) -> State:
        """What has been committed and cleaned so far."""
        stored = json.loads(self._store.read("state.json") or b"{}")
        return State(
            committed=stored.get("committed", 0),
            cleaned=stored.get("cleaned", 0),
            lost={name: (count, noted) for name, (count, noted) in stored.get("lost", {}).items()},
        )

    def commit(self, batch: int, retention: float = 0.0) -> None:
        """Spark has finished every batch up to `batch`: clean those planned `retention` seconds ago."""
        before = self.state()
        now = time.time()
        committed = max(batch, before.committed)
        lost = self._carry_lost(before, committed, now) if committed > before.committed else before.lost
        cleaned = before.cleaned
        while cleaned < batch and self._expired(cleaned + 1, now - retention):
            cleaned += 1
        if (committed, cleaned) == (before.committed, before.cleaned):
            return
        after = {"committed": committed, "cleaned": cleaned, "lost": lost}
        self._store.replace("state.json", _encode(after))
        for number in range(before.cleaned + 1, cleaned + 1):
            self._store.remove(_folder(number))

    def _carry_lost(self, state: State, batch: int, now: float) -> dict[str, tuple[int, float]]:
        remembered = {name: entry for name, entry in state.lost.items() if entry[1] > now - REDELIVERY_MEMORY}
        counts = Counter({name: count for name, (count, _) in remembered.items()})
        for number in range(state.committed + 1, batch + 1):
            for name in self._store.names(_folder(number)):
                content = self._store.read(f"{_folder(number)}/{name}")
                if name.endswith(".ack"):
                    counts.update(json.loads(content or b"{}").get("lost", {}))
                elif name.endswith(".drop"):
                    counts.subtract(_counter(content))
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


def _partitions(names: Iterable[str], suffix: str) -> list[int]:
    return sorted(int(name.removesuffix(suffix)) for name in names if name.endswith(suffix))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _counter(content: bytes | None) -> Counter[str]:
    return Counter(json.loads(content)) if content else Counter()
