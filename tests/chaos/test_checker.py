"""The checker finds what is lost, doubled or changed: each test damages what a good run has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaos.checker import Ledger, Left, Verdict, check, digest
from chaos.messages import body, is_dead, is_poison, is_rejected, is_replied, number_of
from chaos.notes import note, notes

MESSAGES = 100
HALF = MESSAGES // 2
FAULT = {"kind": "stall", "at": 10.0, "until": 20.0, "recovered": 1.0}


class Run:
    """The files of a run in which nothing went wrong: two batches, and a worker that handled all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for queue in ("read", "work"):
            for what in ("asked", "confirmed"):
                note(folder / f"ledger-{queue}", [0, MESSAGES, 1, what])
        self.write(0, range(HALF))
        self.write(1, range(HALF, MESSAGES))
        for number in range(MESSAGES):
            if not is_dead(number) and number % 10 != 9:
                note(folder / "effects", number)
        self._frames([number for number in range(MESSAGES) if number % 10 == 9])
        self.dead = [body(number, "q") for number in range(MESSAGES) if is_dead(number)]
        self.replies = [body(number, "q") for number in range(MESSAGES) if is_replied(number)]
        self.waiting = {"read": 0, "work": 0}

    def write(self, batch: int, numbers: range, at: float = 0.0) -> None:
        """What a batch leaves: its note, and its rows in the table."""
        bodies = [body(number, "q") for number in numbers]
        note(self.folder / "batches", [batch, digest(bodies), digest(bodies), at])
        self._table(f"table/batch={batch}", {"body": bodies})

    def _frames(self, numbers: list[int]) -> None:
        self._table("frames/batch=0", {"n": numbers})

    def _table(self, name: str, columns: dict[str, list[object]]) -> None:
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), self.folder / name / "part-0.parquet")

    def verdict(self, *doubles: str, once: bool = True) -> Verdict:
        return check(
            self.folder,
            Ledger.of(self.folder / "ledger-read"),
            Ledger.of(self.folder / "ledger-work"),
            Left(self.dead, self.replies, self.waiting),
            doubles=doubles,
            doubled=False,
            once=once,
        )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    # An envelope has an id of its own each time: here a message has the same bytes each time.
    monkeypatch.setattr("babelqueue.codec.uuid.uuid4", lambda: "0" * 32)
    monkeypatch.setattr("babelqueue.codec.time.time", lambda: 0.0)
    return Run(tmp_path)


def test_a_run_without_harm_is_good(run: Run) -> None:
    verdict = run.verdict()
    assert verdict.good
    assert (verdict.confirmed, verdict.batches, verdict.replayed, verdict.twice) == (200, 2, 0, {})


def test_a_run_without_messages_is_not_good(tmp_path: Path) -> None:
    nothing = Ledger.of(tmp_path / "none")
    verdict = check(tmp_path, nothing, nothing, Left([], [], {}), doubles=(), doubled=True, once=False)
    assert verdict.unexpected == ["no message was confirmed: nothing was tried"]


def test_what_a_batch_lacks_is_lost(run: Run) -> None:
    run.write(0, range(HALF - 1))
    assert run.verdict().lost == [f"table: {HALF - 1}"]


def test_what_was_not_confirmed_is_not_lost(run: Run) -> None:
    note(run.folder / "ledger-read", [MESSAGES, 10, 1, "asked"])
    assert run.verdict().good


def test_a_message_in_two_batches_is_counted_by_its_fault(run: Run) -> None:
    note(run.folder / "faults", FAULT)
    run.write(2, range(3), at=15.0)
    assert run.verdict().twice == {"stall": 3}
    assert not run.verdict().good
    assert run.verdict("stall").good


def test_what_comes_twice_long_after_a_fault_is_not_put_down_to_it(run: Run) -> None:
    note(run.folder / "faults", FAULT)
    run.write(2, range(3), at=100.0)
    assert run.verdict("stall").twice == {"none": 3}
    assert not run.verdict("stall").good


def test_what_was_published_twice_may_arrive_twice(run: Run) -> None:
    note(run.folder / "ledger-read", [0, 3, 2, "asked"])
    run.write(2, range(3))
    verdict = run.verdict()
    assert verdict.good
    assert (verdict.twice, verdict.twice_published, verdict.repeated) == ({}, 3, 3)


def test_a_replay_with_the_same_bytes_is_good(run: Run) -> None:
    run.write(1, range(HALF, MESSAGES))
    verdict = run.verdict()
    assert verdict.good
    assert verdict.replayed == 1


def test_a_replay_with_other_bytes_is_changed(run: Run) -> None:
    [*_, (number, _, bodies, at)] = notes(run.folder / "batches")
    note(run.folder / "batches", [number, "another", bodies, at])
    assert run.verdict().changed == [1]


def test_a_table_that_differs_from_its_batch_is_changed(run: Run) -> None:
    run._table("table/batch=1", {"body": [body(number, "x") for number in range(HALF, MESSAGES)]})
    assert run.verdict().changed == [1]


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda run: run.dead.pop(), "worker: 57"),
        (lambda run: run.replies.pop(), "replies: 91"),
        (lambda run: run._frames([]), "worker: 9"),
    ],
)
def test_what_the_worker_lost_is_named(run: Run, damage: Callable[[Run], object], lost: str) -> None:
    damage(run)
    assert lost in run.verdict().lost


def test_effects_that_are_gone_are_lost(run: Run) -> None:
    (run.folder / "effects").unlink()
    assert "worker: 1" in run.verdict().lost


def test_what_is_left_in_a_queue_is_unexpected(run: Run) -> None:
    run.waiting["read"] = 1
    assert run.verdict().unexpected == ["1 messages are left in read"]


def test_a_reply_twice_is_unexpected_where_the_broker_drops_repeats(run: Run) -> None:
    run.replies.append(run.replies[0])
    assert run.verdict().unexpected == ["1 replies were published twice"]
    assert run.verdict(once=False).good
    assert run.verdict(once=False).replied_twice == 1


def test_a_handler_that_ran_twice_is_counted(run: Run) -> None:
    note(run.folder / "effects", 1)
    assert run.verdict().handled_twice == 1


def test_a_message_of_nobodys_is_unexpected(run: Run) -> None:
    run.write(2, range(MESSAGES, MESSAGES + 1))
    assert run.verdict().unexpected == ["message 100 was never published"]


def test_a_line_that_a_kill_cut_short_spoils_no_other(tmp_path: Path) -> None:
    note(tmp_path / "notes", [1])
    with (tmp_path / "notes").open("a") as file:
        file.write("\n[2, ")
    note(tmp_path / "notes", [3])
    assert list(notes(tmp_path / "notes")) == [[1], [3]]


def test_each_end_of_a_message_is_reached() -> None:
    for ends in (is_poison, is_rejected, is_replied):
        assert any(map(ends, range(MESSAGES)))
    assert [number_of(body(number, "q")) for number in range(MESSAGES)] == list(range(MESSAGES))
