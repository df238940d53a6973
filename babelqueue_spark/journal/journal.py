"""The journal: what has been claimed from a queue, kept until Spark proves that it is finished with it.

    <journalLocation>/
      journal.json               format and identity of this journal
      owner.json                 the query that may plan and commit
      commits/0000000006         Spark has finished batch 6; what was cleaned, what is still to be redelivered
      batches/0000000007/
        plan.json                what batch 7 reads; written once, before Spark hears of the batch
        00000.arrow              what partition 0 claimed; written once, before the acknowledge
        00000.ack                partition 0 is acknowledged; lists what the broker will deliver again

Batch numbers start at 1 and grow by one. The driver writes plans and commits, executors segments and
marks. A file that exists is never changed, `owner.json` and marks excepted.
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
import pyarrow.compute as pc

from babelqueue_spark.errors import JournalError
from babelqueue_spark.journal.stores import Store, open_store

FORMAT = 1
CLOCK_SKEW = 5.0
"""Seconds by which the clocks of two hosts may differ before a lapsed claim is taken for a live one."""
REDELIVERY_MEMORY = 3600.0
"""Seconds for which a message that may still be redelivered is remembered after its batch was committed."""

Identities = Callable[[str, pa.RecordBatch], list[str]]
"""Names the deliveries of a queue as their redeliveries will be named, and no message of another queue."""

_REPEATED = "repeated"


@dataclass
class State:
    """What the owner has proved.

    Attributes:
        committed: last batch that Spark has finished.
        cleaned: last batch whose segments may be gone.
        lost: identity of a message the broker may still redeliver → [count, epoch seconds noted].
    """

    committed: int = 0
    cleaned: int = 0
    lost: dict[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Holding:
    """What one partition claimed, as its segment keeps it.

    Attributes:
        queue: where they were claimed.
        claimed: the deliveries, all of them.
        repeated: for each batch a mask of the redeliveries of messages that are journalled elsewhere.
        lapses_at: epoch seconds before which the broker cannot have delivered them to anybody else.
    """

    queue: str
    claimed: Sequence[pa.RecordBatch]
    repeated: Sequence[pa.BooleanArray]
    lapses_at: float

    @property
    def fresh(self) -> list[pa.RecordBatch]:
        """The deliveries that Spark gets to see."""
        return self._those([pc.invert(mask) for mask in self.repeated])

    @property
    def redelivered(self) -> list[pa.RecordBatch]:
        """The deliveries that Spark has seen or will see from elsewhere."""
        return self._those(self.repeated)

    def names(self, batches: Iterable[pa.RecordBatch], identities: Identities) -> Counter[str]:
        """Identities of some of the deliveries, each with how often it is there."""
        return Counter(name for batch in batches for name in identities(self.queue, batch))

    def _those(self, masks: Iterable[pa.BooleanArray]) -> list[pa.RecordBatch]:
        chosen = [
            batch if mask.true_count == batch.num_rows else batch.filter(mask)
            for batch, mask in zip(self.claimed, masks, strict=True)
        ]
        return [batch for batch in chosen if batch.num_rows]


class Segment:
    """The deliveries of one partition of one batch."""

    def __init__(self, store: Store, batch: int, partition: int) -> None:
        self._store = store
        self._stem = f"{_folder(batch)}/{partition:05d}"

    def read(self) -> Holding | None:
        """What was claimed, as journalled, or None when no attempt has written the segment."""
        file = self._store.read_arrow(f"{self._stem}.arrow")
        if file is None:
            return None
        claimed = [batch.drop_columns([_REPEATED]) for batch in file.batches]
        repeated = [batch.column(_REPEATED) for batch in file.batches]
        return Holding(
            file.metadata[b"queue"].decode(), claimed, repeated, float(file.metadata[b"lapses_at"])
        )

    def write(self, holding: Holding, schema: pa.Schema) -> bool:
        """Journal what was claimed (batches of `schema`), whole and durable; False when another was first."""
        writer_id = uuid.uuid4().hex
        metadata = {"queue": holding.queue, "lapses_at": repr(holding.lapses_at), "writer": writer_id}
        schema = schema.append(pa.field(_REPEATED, pa.bool_())).with_metadata(metadata)
        batches = (
            pa.RecordBatch.from_arrays([*batch.columns, mask], schema=schema)
            for batch, mask in zip(holding.claimed, holding.repeated, strict=True)
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
        """Whether the broker has been told; its acknowledge need not be repeated."""
        return self._store.read(f"{self._stem}.ack") is not None

    def mark_acknowledged(self, claimed: int, lost: Iterable[str] = (), repeated: Iterable[str] = ()) -> None:
        """Record the acknowledge of `claimed` messages.

        `lost` are those the broker may deliver again, `repeated` those that were such redeliveries. Two
        attempts may both acknowledge: a message is lost only if neither could.
        """
        mark = {"claimed": claimed, "lost": Counter(lost), "repeated": Counter(repeated)}
        if not self._store.create(f"{self._stem}.ack", _encode(mark)):
            earlier = Counter(self.mark().get("lost", {}))
            self._store.replace(f"{self._stem}.ack", _encode({**mark, "lost": Counter(lost) & earlier}))

    def mark(self) -> dict[str, Any]:
        """What `mark_acknowledged` recorded; empty before."""
        return json.loads(self._store.read(f"{self._stem}.ack") or b"{}")  # type: ignore[no-any-return]

    def still_to_come(self, identities: Identities, now: float) -> Counter[str]:
        """How often the broker may deliver each message again (positive), or has done so (negative)."""
        mark = self.mark()
        if mark:
            return _balance(mark)
        holding = self.read()
        if holding is None:
            return Counter()
        lapsed = holding.lapses_at < now + CLOCK_SKEW
        claimed = holding.claimed if lapsed else []
        return _difference(holding.names(claimed, identities), holding.names(holding.redelivered, identities))


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
        for number in range(after + 1, batch + 1):
            for index in _partitions(self._store.names(_folder(number)), ".arrow"):
                if (number, index) != (batch, partition):
                    found.update(self.segment(number, index).still_to_come(identities, now))
        return +found

    # -- committing --------------------------------------------------------------------------------

    def state(self) -> State:
        """What has been committed and cleaned so far."""
        seen: list[int] = []
        while (numbers := self._commits()) != seen:
            for number in reversed(numbers):
                content = self._store.read(_commit(number))
                if content is not None:
                    stored = json.loads(content)
                    lost = {name: (count, noted) for name, (count, noted) in stored["lost"].items()}
                    return State(committed=number, cleaned=stored["cleaned"], lost=lost)
            seen = numbers  # gone since they were listed, when a later one came, or torn
        return State()

    def commit(self, batch: int, retention: float = 0.0) -> None:
        """Spark has finished every batch up to `batch`: clean those planned `retention` seconds ago."""
        before = self.state()
        if batch <= before.committed:
            return
        now = time.time()
        cleaned = before.cleaned
        while cleaned < batch and self._expired(cleaned + 1, now - retention):
            cleaned += 1
        after = {"cleaned": cleaned, "lost": self._carry_lost(before, batch, now)}
        self._store.create(_commit(batch), _encode(after))
        for number in self._commits():
            if number < batch:
                self._store.remove_file(_commit(number))
        for number in range(before.cleaned + 1, cleaned + 1):
            self._store.remove(_folder(number))

    def _commits(self) -> list[int]:
        return sorted(int(name) for name in self._store.names("commits") if name.isdigit())

    def _carry_lost(self, state: State, batch: int, now: float) -> dict[str, tuple[int, float]]:
        remembered = {name: entry for name, entry in state.lost.items() if entry[1] > now - REDELIVERY_MEMORY}
        counts = Counter({name: count for name, (count, _) in remembered.items()})
        for number in range(state.committed + 1, batch + 1):
            for index in _partitions(self._store.names(_folder(number)), ".ack"):
                counts.update(_balance(self.segment(number, index).mark()))
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


def _balance(mark: dict[str, Any]) -> Counter[str]:
    """How often what an acknowledge left behind may come again, less what it recognised."""
    return _difference(Counter(mark["lost"]), Counter(mark["repeated"]))


def _difference(left: Counter[str], right: Counter[str]) -> Counter[str]:
    """`left` less `right`, negative counts kept."""
    left.subtract(right)
    return left
