"""The journal: a write-ahead log of what was claimed from a queue, kept until Spark has finished with it.

    <journalLocation>/
      journal.json               format and id of this journal
      owner.json                 the query that may plan and commit
      commits/0000000006         Spark has finished batch 6; what was cleaned, what may still be redelivered
      batches/0000000007/
        plan.json                what batch 7 reads; written once, before Spark hears of the batch
        00000.arrow              what partition 0 claimed; written once, before the acknowledge
        00000.ack                partition 0 is acknowledged; lists what the broker will deliver again
        00000.order              which segment was complete first, of brokers that deliver twice at once

Batch numbers start at 1 and grow by one. The driver writes plans and commits, executors segments and
acknowledge records. Only `owner.json` and acknowledge records are ever replaced.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from babelqueue_spark.errors import JournalError, JournalMissingError, JournalTakenOverError
from babelqueue_spark.journal.order import left_to_others
from babelqueue_spark.journal.segments import SILENT_RECORD, Identities, Segment, encode, folder_of, names_of
from babelqueue_spark.storage import Survey, open_store

FORMAT = 3
_SEEN: set[tuple[str, str]] = set()
"""Journals on object stores (location, id) that this process saw: no mount comes between them and a task."""
REDELIVERY_MEMORY = 3600.0
"""Seconds for which a message that may still be redelivered is remembered after its batch was committed."""


_SILENT_COMMIT = len(encode({"cleaned": 9_999_999_999, "unacknowledged": {}}))
"""Most bytes of a commit after which nothing is to be delivered again."""


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


@dataclass
class Tally:
    """What an owner has seen since it took the journal over; the first four only grow.

    Attributes:
        segments, bytes: of finished batches.
        redelivered: deliveries in them that were recognised as redeliveries.
        unacknowledged: messages in them whose claims had lapsed before the acknowledge.
        held_segments, held_bytes: what the journal held when the last batch had ended.
    """

    segments: int = 0
    bytes: int = 0
    redelivered: int = 0
    unacknowledged: int = 0
    held_segments: int = 0
    held_bytes: int = 0


class Journal:
    """One journal directory. Cheap to make; executors use only `segment` and `expected_redeliveries`.

    Args:
        config: of the object store, if it is one; see `open_store`.
        clock: seconds since 1970 by which commits reckon, on whichever host the driver runs.
    """

    def __init__(
        self, location: str, config: Mapping[str, str] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = open_store(location, config=config)
        self.location = self._store.location
        self._clock = clock
        self._owner: str | None = None
        self._owner_version: str | None = None
        self._state: State | None = None
        self._id: str | None = None
        self._kept: dict[int, list[int]] = {}  # finished batch → sizes of its segments, until it is cleaned
        self.tally = Tally()

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
            self._store.create("journal.json", encode({"format": FORMAT, "id": uuid.uuid4().hex}))
            content = self._store.read("journal.json")
        header = json.loads(content or b"{}")
        if header.get("format") != FORMAT:
            raise JournalError(
                f"journal {self.location} has format {header.get('format')}, this release reads "
                f"format {FORMAT}: use the release that wrote it, or another journalLocation"
            )
        return str(header["id"])

    def check_shared(self, journal_id: str) -> None:
        """Raise `JournalMissingError` unless this process sees the journal of that id."""
        if (self.location, journal_id) in _SEEN:
            return
        content = self._store.read("journal.json")
        if content is not None and json.loads(content).get("id") == journal_id:
            if not self._store.mounted:
                _SEEN.add((self.location, journal_id))
            return
        found = "another journal" if content else "no journal"
        raise JournalMissingError(
            f"journal {self.location}: host {socket.gethostname()} sees {found} there, not the driver's: "
            "journalLocation must be a directory that driver and executors share, so mount it on each host, "
            "or name an object store (s3://…); no message was claimed"
        )

    # -- ownership ---------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Become the one query that plans and commits; the query before it fails at its next step."""
        self._sweep()
        owner = {
            "owner": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._store.replace("owner.json", encode(owner))
        self._owner, self._owner_version = str(owner["owner"]), None
        self._state = self._read_state()
        self._remove_cleaned(self._state.cleaned)
        self._keep(range(self._state.cleaned + 1, self._state.committed + 1))

    def check_owner(self) -> Survey:
        """Raise `JournalTakenOverError` if another query has taken the journal over since `take_over`.

        Returns what the journal held at that moment. A commit by the former owner, which was under way when
        this one took over, shows here, and `state` is read again.
        """
        seen = self._survey()
        if seen.version is None or seen.version != self._owner_version:
            # A file that is ours now was ours at the survey too, since each owner writes it once.
            self._check_owner_file()
            self._owner_version = seen.version
        if self._state is None or max(_numbers(seen.sizes("commits")), default=0) != self._state.committed:
            self._state = self._read_state()
        return seen

    def _survey(self) -> Survey:
        return self._store.survey(folder_of(self.state().committed), "owner.json")

    def _check_owner_file(self) -> None:
        content = self._store.read("owner.json")
        if self._owner is not None and content is None:
            raise JournalMissingError(
                f"journal {self.location} is gone: it was deleted or unmounted after this query had begun to "
                "use it; bring it back and start the query again, or begin with a new checkpoint and a new "
                "journalLocation"
            )
        owner = json.loads(content or b"{}")
        if self._owner is None or owner.get("owner") != self._owner:
            raise JournalTakenOverError(
                f"journal {self.location} was taken over by another query (host {owner.get('host')}, "
                f"process {owner.get('pid')}, since {owner.get('since')}): a journal serves one query; "
                "stop one of the two or give it a journalLocation of its own"
            )

    # -- plans -------------------------------------------------------------------------------------

    def plan(self, batch: int, seen: Survey | None = None) -> dict[str, Any] | None:
        """Read the recorded plan of a batch, or None; nothing is read if it was not `seen` a moment ago."""
        if seen is not None and "plan.json" not in seen.sizes(folder_of(batch)):
            return None
        content = self._store.read(f"{folder_of(batch)}/plan.json")
        return json.loads(content) if content is not None else None

    def record_plan(self, batch: int, plan: dict[str, Any]) -> dict[str, Any]:
        """Write the plan of a batch, unless it has one; return the plan that it has then."""
        self._store.make_folder(folder_of(batch))
        if self._store.create(f"{folder_of(batch)}/plan.json", encode(plan)):
            return plan
        recorded = self.plan(batch)
        if recorded is None:
            raise JournalError(f"journal {self.location} lost the plan of batch {batch} while it was written")
        return recorded

    def last_planned(self) -> int:
        """Find the highest batch that has a plan, or else the last committed one."""
        committed = self.state().committed
        # The folder is made first: a driver that died between the two left one without a plan.
        batches = reversed(_numbers(self._store.names("batches")))
        return next((batch for batch in batches if batch > committed and self.plan(batch)), committed)

    # -- segments ----------------------------------------------------------------------------------

    def segment(self, batch: int, partition: int) -> Segment:
        return Segment(self._store, batch, partition)

    def left_to_others(self, batch: int, partition: int, names: list[str]) -> set[str]:
        """Tell which messages of a segment that is written other segments of the batch yield; see `order`."""
        return left_to_others(self._store, batch, partition, names)

    def expected_redeliveries(
        self, after: int, batch: int, partition: int, identities: Identities, now: float
    ) -> Counter[str]:
        """Count the identities of journalled messages that the broker may deliver again.

        They come from segments of the batches `after + 1 … batch` (except `partition` of `batch`) whose claim
        may have lapsed before the acknowledge, from messages that an acknowledge could not remove, and from
        those that earlier batches left unacknowledged; less the redeliveries recognised since.
        """
        seen = self._store.survey(folder_of(after))
        found = Counter[str]()
        if any(size > _SILENT_COMMIT for size in seen.sizes("commits").values()):
            found.update({name: count for name, (count, _) in self.state().unacknowledged.items()})
        for segment in self._segments(after, batch, telling=True, seen=seen):
            if segment.place != (batch, partition):
                found.update(segment.expected_redeliveries(identities, now))
        return +found

    def claimed_since(
        self, moment: float, after: int, batch: int, partition: int, identities: Identities
    ) -> Counter[str]:
        """Count the identities of new messages in other segments whose claims lapse after `moment`.

        They come from the batches `after + 1 … batch`. With `moment` a lease after the end of a claim, these
        are what other tasks claimed once it had ended.
        """
        found: Counter[str] = Counter()
        for segment in self._segments(after, batch):
            content = segment.read() if segment.place != (batch, partition) else None
            if content is not None and content.lapses_at >= moment:
                found.update(names_of(content.fresh, identities))
        return found

    def _segments(
        self, after: int, batch: int, *, telling: bool = False, seen: Survey | None = None
    ) -> Iterator[Segment]:
        """Return the segments of batches `after + 1 … batch`, as they were `seen`, or by listing each.

        With `telling`, only those of which a redelivery may be expected: as the size of an acknowledge record
        shows, most hold nothing but how many messages were claimed.
        """
        for number in range(after + 1, batch + 1):
            sizes = (seen.sizes if seen else self._store.sizes)(folder_of(number))
            for index in sorted(
                int(name.removesuffix(".arrow")) for name in sizes if name.endswith(".arrow")
            ):
                segment = self.segment(number, index)
                if not telling or sizes.get(f"{index:05d}.ack", math.inf) > SILENT_RECORD:
                    yield segment

    # -- committing --------------------------------------------------------------------------------

    def state(self) -> State:
        """Tell what has been committed and cleaned so far.

        Its owner remembers it, since only the owner commits; `check_owner` reads it again if another did.
        """
        return self._state if self._state is not None else self._read_state()

    def is_cleaned(self, batch: int) -> bool:
        """Return whether a batch's segments may be gone; lists the commits once if it is not finished.

        Segments are removed only after the commit is written. So a segment that could be created before a
        listing without that commit is the first of its place, and no late one of a cleaned batch.
        """
        return (
            max(_numbers(self._store.names("commits")), default=0) >= batch
            and self._read_state().cleaned >= batch
        )

    def _read_state(self) -> State:
        seen: list[int] = []
        while (numbers := _numbers(self._store.names("commits"))) != seen:
            for number in reversed(numbers):
                content = self._store.read(_commit(number))
                if content is not None:
                    stored = json.loads(content)
                    left = {name: (count, noted) for name, (count, noted) in stored["unacknowledged"].items()}
                    return State(committed=number, cleaned=stored["cleaned"], unacknowledged=left)
            seen = numbers  # removed since they were listed, because a later one came; or torn
        return State()

    def commit(self, batch: int, retention: float = 0.0, seen: Survey | None = None) -> list[int]:
        """Record that Spark has finished every batch up to `batch`; clean those planned `retention` s ago.

        What was `seen` must not be older than the end of the batch. Returns the batches that no task read.
        """
        before = self.state()
        if batch <= before.committed:
            return []
        seen = seen or self._survey()
        now = self._clock()
        cleaned = before.cleaned
        oldest = now - retention if retention else math.inf
        while cleaned < batch and self._expired(cleaned + 1, oldest):
            cleaned += 1
        unacknowledged = self._still_unacknowledged(before, batch, now, seen)
        finished = range(before.committed + 1, batch + 1)
        self._count(finished, seen)
        unread = [number for number in finished if list(seen.sizes(folder_of(number))) == ["plan.json"]]
        after = {"cleaned": cleaned, "unacknowledged": unacknowledged}
        expired = range(before.cleaned + 1, cleaned + 1)
        self._write_commit(batch, encode(after), expired)
        if self._state is not None:
            self._state = State(batch, cleaned, unacknowledged)
        for number in expired:
            self._kept.pop(number, None)
        former = [_commit(number) for number in _numbers(seen.sizes("commits")) if number < batch]
        self._store.remove_all(former, [folder_of(number) for number in expired], seen)
        return unread

    def _write_commit(self, batch: int, content: bytes, expired: range) -> None:
        """Write a commit; where there is no room, make some by deleting the segments that it would clean."""
        self._store.make_folder("commits")
        try:
            self._create_commit(batch, content)
        except JournalMissingError:
            raise
        except JournalError:
            if not self._store.mounted:  # an object store is never full
                raise
            for segment in self._segments(expired.start - 1, expired.stop - 1):
                segment.discard()
            self._create_commit(batch, content)

    def _create_commit(self, batch: int, content: bytes) -> None:
        if not self._store.create(_commit(batch), content) and self._store.read(_commit(batch)) is None:
            raise JournalError(
                f"journal {self.location}: the commit of batch {batch} is still being written by a former "
                "request: start the query again"
            )

    def _still_unacknowledged(
        self, state: State, batch: int, now: float, seen: Survey
    ) -> dict[str, tuple[int, float]]:
        oldest = now - REDELIVERY_MEMORY
        remembered = {name: entry for name, entry in state.unacknowledged.items() if entry[1] > oldest}
        counts = Counter({name: count for name, (count, _) in remembered.items()})
        for segment in self._segments(state.committed, batch, telling=True, seen=seen):
            record = segment.ack_record()
            if record is not None:
                counts.update(record.expected_redeliveries())
                self.tally.redelivered += record.redelivered.total()
                self.tally.unacknowledged += record.unacknowledged.total()
        return {
            name: (count, remembered.get(name, (0, now))[1]) for name, count in counts.items() if count > 0
        }

    def _count(self, batches: range, seen: Survey) -> None:
        for number in batches:
            sizes = self._kept[number] = _segment_sizes(seen.sizes(folder_of(number)))
            self.tally.segments += len(sizes)
            self.tally.bytes += sum(sizes)
        self.tally.held_segments = sum(map(len, self._kept.values()))
        self.tally.held_bytes = sum(map(sum, self._kept.values()))

    def _keep(self, batches: range) -> None:
        """Note what finished batches of a former owner hold: nothing is asked where all are cleaned."""
        if batches:
            seen = self._store.survey(folder_of(batches.start - 1))
            self._kept = {number: _segment_sizes(seen.sizes(folder_of(number))) for number in batches}

    def _expired(self, batch: int, before: float) -> bool:
        if before == math.inf:
            return True
        plan = self.plan(batch)
        return plan is None or float(plan.get("planned_at", 0)) <= before

    def _sweep(self) -> None:
        """Delete what a query that was killed, or had no room to write, left unfinished."""
        for folder in ("", "commits", *(f"batches/{name}" for name in self._store.names("batches"))):
            self._store.sweep(folder)

    def _remove_cleaned(self, cleaned: int) -> None:
        for number in _numbers(self._store.names("batches")):
            if number <= cleaned:
                self._store.remove(folder_of(number))


def _commit(batch: int) -> str:
    return f"commits/{batch:010d}"


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())


def _segment_sizes(sizes: Mapping[str, int]) -> list[int]:
    return [size for name, size in sizes.items() if name.endswith(".arrow")]
