"""Compares what was published, as the ledger says, with what has arrived: the verdict of a trial.

It reads the files of a trial's folder, and the bodies left in its queues; it needs no server and no Spark.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from chaos.messages import is_dead, is_replied, number_of
from chaos.notes import notes

SETTLES = 15.0
"""Seconds after the recovery from a fault within which what arrives twice is put down to it."""


def digest(contents: Iterable[bytes]) -> str:
    """A digest of contents in any order."""
    found = hashlib.sha256()
    for content in sorted(contents):
        found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()


@dataclass
class Verdict:
    """What a trial has shown.

    Attributes:
        asked, confirmed: messages that were published, and those of them that the broker has confirmed.
        repeated: messages that were published again, since the broker had not confirmed them.
        lost: confirmed messages that are nowhere, as texts.
        batches, replayed: batches of the stream, and those that Spark ran more than once.
        changed: numbers of batches whose replays, or whose table, differ.
        twice: messages more than one in the table, by the kind of fault before.
        twice_published: messages in the table more than once that the producer published more than once.
        handled_twice: runs of handlers beyond the first.
        dead_twice, replied_twice: dead letters and replies beyond the first of a message.
        dead: messages that became dead letters, though handlers accept them.
        unexpected: what must not be, as texts.
    """

    asked: int = 0
    confirmed: int = 0
    repeated: int = 0
    lost: list[str] = field(default_factory=list)
    batches: int = 0
    replayed: int = 0
    changed: list[int] = field(default_factory=list)
    twice: dict[str, int] = field(default_factory=dict)
    twice_published: int = 0
    handled_twice: int = 0
    dead_twice: int = 0
    replied_twice: int = 0
    dead: int = 0
    unexpected: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether all that is promised has held."""
        return not (self.lost or self.changed or self.unexpected)


@dataclass(frozen=True)
class Left:
    """Bodies that were taken from the queues in the end."""

    dead: Sequence[bytes]
    replies: Sequence[bytes]
    waiting: Mapping[str, int]


@dataclass(frozen=True)
class Ledger:
    """What was published to a queue: number → how often it was asked for; and which were confirmed."""

    asked: Counter[int]
    confirmed: set[int]

    @classmethod
    def of(cls, file: Path) -> Ledger:
        """Read the file that `chaos.producer` writes."""
        asked: Counter[int] = Counter()
        confirmed: set[int] = set()
        for first, count, _, what in notes(file):
            numbers = range(first, first + count)
            if what == "asked":
                asked.update(numbers)
            else:
                confirmed.update(numbers)
        return cls(asked, confirmed)


def check(
    folder: Path, read: Ledger, work: Ledger, left: Left, *, doubles: Iterable[str], doubled: bool, once: bool
) -> Verdict:
    """Compare; `doubles` are faults after which a message may arrive twice, `doubled`: it may at any time.

    Args:
        folder: of the trial.
        read, work: what was published for the stream, and for the worker.
        left: what was in the other queues in the end.
        once: whether the broker drops what a repeated publish has published before.
    """
    verdict = Verdict(
        asked=len(read.asked) + len(work.asked),
        confirmed=len(read.confirmed) + len(work.confirmed),
        repeated=sum(count > 1 for ledger in (read, work) for count in ledger.asked.values()),
    )
    if not (read.confirmed and work.confirmed):
        verdict.unexpected.append("no message was confirmed: nothing was tried")
    for queue, count in left.waiting.items():
        if count:
            verdict.unexpected.append(f"{count} messages are left in {queue}")
    allowed = set(doubles)
    _check_stream(folder, read, verdict)
    for fault, count in verdict.twice.items():
        if not doubled and fault not in allowed:
            verdict.unexpected.append(f"{count} messages are in the table twice, after {fault}")
    _check_worker(folder, work, left, verdict)
    if once and not doubled:
        for what, count in (("dead letters", verdict.dead_twice), ("replies", verdict.replied_twice)):
            if count and not allowed & {fault["kind"] for fault in notes(folder / "faults")}:
                verdict.unexpected.append(f"{count} {what} were published twice")
    return verdict


def _check_stream(folder: Path, read: Ledger, verdict: Verdict) -> None:
    attempts: defaultdict[int, list[list[Any]]] = defaultdict(list)
    for attempt in notes(folder / "batches"):
        attempts[attempt[0]].append(attempt)
    table = {number: _bodies(folder / f"table/batch={number}") for number in attempts}
    for number, runs in sorted(attempts.items()):
        same = len({everything for _, everything, _, _ in runs}) == 1
        if not same or digest(table[number]) != runs[-1][2]:
            verdict.changed.append(number)
    verdict.batches = len(attempts)
    verdict.replayed = sum(len(runs) > 1 for runs in attempts.values())
    arrived: Counter[int] = Counter()
    twice: Counter[str] = Counter()
    for number in sorted(table):
        for body in table[number]:
            message = number_of(body)
            arrived[message] += 1
            if 1 < arrived[message] <= read.asked[message]:
                verdict.twice_published += 1
            elif arrived[message] > 1:
                twice[_fault_before(folder, attempts[number][0][3])] += 1
    verdict.twice = dict(twice)
    verdict.lost += _lost("table", read.confirmed, arrived)
    unknown = sorted(arrived.keys() - read.asked.keys())
    verdict.unexpected += [f"message {each} was never published" for each in unknown]


def _check_worker(folder: Path, work: Ledger, left: Left, verdict: Verdict) -> None:
    effects = Counter(notes(folder / "effects"))
    framed = {
        number
        for file in folder.glob("frames/batch=*/part-*.parquet")
        for number in pq.read_table(file).column("n").to_pylist()
    }
    dead = Counter(map(number_of, left.dead))
    replies = Counter(map(number_of, left.replies))
    handled = effects.keys() | framed
    verdict.handled_twice = effects.total() - len(effects)
    verdict.dead = sum(not is_dead(number) for number in dead)
    verdict.dead_twice = sum(_beyond(dead, work))
    verdict.replied_twice = sum(_beyond(replies, work))
    verdict.lost += _lost("worker", work.confirmed, handled | dead.keys())
    replied = {number for number in work.confirmed & handled if is_replied(number)}
    verdict.lost += _lost("replies", replied, replies)
    verdict.unexpected += [f"message {each} was handled, not dead" for each in handled if is_dead(each)]


def _beyond(found: Counter[int], ledger: Ledger) -> Iterable[int]:
    """How many of each there are beyond those that the producer has published."""
    return (max(0, count - max(1, ledger.asked[number])) for number, count in found.items())


def _lost(where: str, wanted: Iterable[int], found: Iterable[int]) -> list[str]:
    return [f"{where}: {number}" for number in sorted(set(wanted) - set(found))]


def _bodies(folder: Path) -> list[bytes]:
    files = folder.glob("part-*.parquet")
    return [body for file in files for body in pq.read_table(file).column("body").to_pylist()]


def _fault_before(folder: Path, moment: float) -> str:
    """The kind of the last fault that may have had an effect at a moment."""
    found = [
        fault["kind"]
        for fault in notes(folder / "faults")
        if fault["at"] <= moment <= fault["until"] + fault["recovered"] + SETTLES
    ]
    return found[-1] if found else "none"
