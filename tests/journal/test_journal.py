"""What the journal promises, on each kind of storage."""

from __future__ import annotations

import errno
import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import DELIVERIES
from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.errors import JournalError, JournalMissingError, OptionError
from babelqueue_spark.journal import AckRecord, Journal, SegmentContent, SegmentState
from babelqueue_spark.journal.segments import CLOCK_SKEW
from babelqueue_spark.storage import LocalStore, open_store

NOW = 1_000_000.0


def batch(*bodies: bytes) -> pa.RecordBatch:
    return deliveries(len(bodies), body=list(bodies), id=[body.decode() for body in bodies])


def names(_: str, deliveries: pa.RecordBatch) -> list[str]:
    return deliveries.column("id").to_pylist()


def write(journal: Journal, number: int, partition: int, *bodies: bytes, lapses_at: float = 0.0) -> bool:
    journal.record_plan(number, {})
    return journal.segment(number, partition).write(content_of(*bodies, lapses_at=lapses_at), DELIVERIES)


def content_of(*bodies: bytes, redelivered: tuple[bytes, ...] = (), lapses_at: float = 0.0) -> SegmentContent:
    mask = pa.array([body in redelivered for body in bodies], pa.bool_())
    return SegmentContent([("orders", batch(*bodies))], [mask], lapses_at)


def read(journal: Journal, number: int, partition: int) -> list[str] | None:
    """The names of what Spark gets to see of a segment, or None when it is not written."""
    found = journal.segment(number, partition).read()
    return None if found is None else [name for queue, batch in found.fresh for name in names(queue, batch)]


@pytest.fixture(scope="class")
def s3_bucket() -> Iterator[str]:
    from tests.s3 import S3Server

    with S3Server() as server:
        yield server.bucket


@pytest.fixture(params=["hard links", "no hard links", "object store"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "object store":
        bucket = request.getfixturevalue("s3_bucket")
        return f"s3://{bucket}/{tmp_path.name}"
    if request.param == "no hard links":

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    return str(tmp_path / "journal")


@pytest.fixture
def journal(location: str) -> Journal:
    made = Journal(location)
    _ = made.id
    made.take_over()
    return made


class TestSegments:
    def test_unwritten_segment_reads_as_none(self, journal: Journal) -> None:
        assert journal.segment(1, 0).read() is None

    def test_segment_returns_the_same_deliveries(self, journal: Journal) -> None:
        assert write(journal, 1, 0, b"a", b"b")
        found = journal.segment(1, 0).read()
        assert found is not None
        assert found.claimed == [("orders", batch(b"a", b"b"))]
        assert found.fresh == [("orders", batch(b"a", b"b"))]

    def test_redeliveries_stand_in_the_segment_and_are_not_shown(self, journal: Journal) -> None:
        journal.record_plan(1, {})
        held = content_of(b"a", b"b", b"c", redelivered=(b"b",), lapses_at=NOW)
        assert journal.segment(1, 0).write(held, DELIVERIES)
        found = journal.segment(1, 0).read()
        assert found is not None
        assert found.lapses_at == NOW
        assert found.claimed == [("orders", batch(b"a", b"b", b"c"))]
        assert found.fresh == [("orders", batch(b"a", b"c"))]
        assert found.redeliveries == [("orders", batch(b"b"))]

    def test_empty_segment_is_written_and_stays_empty(self, journal: Journal) -> None:
        journal.record_plan(1, {})
        assert journal.segment(1, 0).write(SegmentContent([], [], 0.0), DELIVERIES)
        assert read(journal, 1, 0) == []
        assert not write(journal, 1, 0, b"late")

    def test_second_writer_loses_and_changes_nothing(self, journal: Journal) -> None:
        assert write(journal, 1, 0, b"first")
        assert not write(journal, 1, 0, b"second")
        assert read(journal, 1, 0) == ["first"]

    def test_writer_whose_request_was_repeated_knows_its_own_file(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create = journal._store._create
        monkeypatch.setattr(journal._store, "_create", lambda *given: create(*given) and False)
        assert write(journal, 1, 0, b"mine")
        assert not write(journal, 1, 0, b"another's")

    def test_the_state_says_how_far_an_attempt_came(self, journal: Journal) -> None:
        segment = journal.segment(1, 0)
        assert segment.load() == (SegmentState.ABSENT, None)
        assert write(journal, 1, 0, b"a")
        state, content = segment.load()
        assert content is not None
        assert (state, content.fresh) == (SegmentState.JOURNALLED, [("orders", batch(b"a"))])
        segment.mark_acknowledged([1])
        assert segment.load()[0] is SegmentState.ACKNOWLEDGED

    def test_an_ack_record_keeps_counts_and_what_is_unacknowledged(self, journal: Journal) -> None:
        journal.record_plan(1, {})
        segment = journal.segment(1, 0)
        assert not segment.acknowledged()
        segment.mark_acknowledged([3], ["a", "a", "b"])
        assert segment.acknowledged()
        assert segment.ack_record() == AckRecord([3], Counter(a=2, b=1), Counter())
        stored = json.loads(journal._store.read("batches/0000000001/00000.ack") or b"")
        assert stored == {"claimed": [3], "unacknowledged": {"a": 2, "b": 1}, "redelivered": {}}

    def test_unacknowledged_is_what_neither_of_two_attempts_could_remove(self, journal: Journal) -> None:
        journal.record_plan(1, {})
        journal.segment(1, 0).mark_acknowledged([3], ["a", "b"])
        journal.segment(1, 0).mark_acknowledged([3], ["b", "c"])
        record = journal.segment(1, 0).ack_record()
        assert record is not None
        assert record.unacknowledged == {"b": 1}


class TestRedeliveries:
    def redeliveries(self, journal: Journal, number: int = 1, partition: int = 9, after: int = 0) -> Any:
        return journal.expected_redeliveries(after, number, partition, names, now=NOW)

    def test_unacknowledged_lapsed_segment_counts(self, journal: Journal) -> None:
        write(journal, 1, 0, b"a", b"b", lapses_at=NOW - 1)
        assert self.redeliveries(journal) == {"a": 1, "b": 1}

    def test_live_claim_cannot_be_redelivered(self, journal: Journal) -> None:
        write(journal, 1, 0, b"a", lapses_at=NOW + CLOCK_SKEW + 1)
        assert self.redeliveries(journal) == {}

    def test_acknowledged_segment_counts_only_what_is_unacknowledged(self, journal: Journal) -> None:
        write(journal, 1, 0, b"a", b"b")
        journal.segment(1, 0).mark_acknowledged([2], ["b"])
        assert self.redeliveries(journal) == {"b": 1}

    def test_recognised_redelivery_counts_no_more(self, journal: Journal) -> None:
        write(journal, 1, 0, b"b")
        journal.segment(1, 0).mark_acknowledged([1], ["b"])
        assert journal.segment(1, 1).write(
            content_of(b"b", redelivered=(b"b",), lapses_at=NOW + 60), DELIVERIES
        )
        assert self.redeliveries(journal) == {}
        journal.segment(1, 1).mark_acknowledged([1], redelivered=["b"])
        assert self.redeliveries(journal) == {}

    def test_recognised_redelivery_whose_claim_lapsed_comes_once_more(self, journal: Journal) -> None:
        """Killed between the segment that recognised it and the acknowledge."""
        write(journal, 1, 0, b"b")
        journal.segment(1, 0).mark_acknowledged([1], ["b"])
        assert journal.segment(1, 1).write(
            content_of(b"b", redelivered=(b"b",), lapses_at=NOW - 1), DELIVERIES
        )
        assert self.redeliveries(journal) == {"b": 1}

    def test_own_segment_and_committed_batches_are_left_out(self, journal: Journal) -> None:
        write(journal, 1, 0, b"a")
        write(journal, 2, 9, b"b")
        assert self.redeliveries(journal, number=2, after=1) == {}

    def test_unacknowledged_messages_outlive_their_batch(self, journal: Journal) -> None:
        write(journal, 1, 0, b"a", b"b")
        journal.segment(1, 0).mark_acknowledged([2], ["a", "b"])
        write(journal, 2, 0, b"a")
        journal.segment(2, 0).mark_acknowledged([1], redelivered=["a"])
        journal.commit(2)
        assert self.redeliveries(journal, number=3, after=2) == {"b": 1}


class TestPlans:
    def test_first_plan_wins(self, journal: Journal) -> None:
        assert journal.record_plan(1, {"batch": 1, "reads": [1]}) == {"batch": 1, "reads": [1]}
        assert journal.record_plan(1, {"batch": 1, "reads": [2]}) == {"batch": 1, "reads": [1]}

    def test_last_planned(self, journal: Journal) -> None:
        assert journal.last_planned() == 0
        for number in (1, 2, 3):
            journal.record_plan(number, {"batch": number})
        assert journal.last_planned() == 3
        journal.commit(3)
        assert journal.last_planned() == 3

    def test_a_folder_without_a_plan_is_no_batch(self, journal: Journal) -> None:
        """A driver that died between the two, or had no room for the plan."""
        journal.record_plan(1, {"batch": 1})
        journal._store.make_folder("batches/0000000002")
        assert journal.last_planned() == 1


class TestCommit:
    def test_commit_cleans_what_it_proves_and_no_more(self, journal: Journal) -> None:
        for number in (1, 2, 3):
            journal.record_plan(number, {"batch": number})
            write(journal, number, 0, b"a")
        journal.commit(2)
        assert [read(journal, n, 0) for n in (1, 2, 3)] == [None, None, ["a"]]
        assert (journal.state().committed, journal.state().cleaned) == (2, 2)

    def test_commit_never_goes_back(self, journal: Journal) -> None:
        journal.commit(2)
        journal.commit(1)
        assert journal.state().committed == 2

    def test_a_late_commit_of_a_query_that_lost_the_journal_takes_nothing_back(
        self, journal: Journal, location: str
    ) -> None:
        """It was between the look at the owner and its write when the other took over."""
        second = Journal(location)
        second.take_over()
        for number in (1, 2):
            second.commit(number)
        journal._store.create("commits/0000000001", b'{"cleaned":0,"unacknowledged":{}}')
        assert (second.state().committed, second.state().cleaned) == (2, 2)

    def test_a_redelivery_is_expected_for_an_hour(self, tmp_path: Path) -> None:
        now = [NOW]
        journal = Journal(str(tmp_path), clock=lambda: now[0])
        _ = journal.id
        journal.take_over()
        assert write(journal, 1, 0, b"a")
        journal.segment(1, 0).mark_acknowledged([1], ["a"])
        journal.commit(1)
        now[0] += 3590
        journal.commit(2)
        assert journal.state().unacknowledged.keys() == {"a"}
        now[0] += 20
        journal.commit(3)
        assert not journal.state().unacknowledged

    def test_retention_keeps_segments_of_committed_batches(self, journal: Journal) -> None:
        import time

        journal.record_plan(1, {"batch": 1, "planned_at": time.time() - 100})
        journal.record_plan(2, {"batch": 2, "planned_at": time.time()})
        write(journal, 1, 0, b"old")
        write(journal, 2, 0, b"new")
        journal.commit(2, retention=50)
        assert (read(journal, 1, 0), read(journal, 2, 0)) == (None, ["new"])
        assert (journal.state().committed, journal.state().cleaned) == (2, 1)

    def test_cleaning_left_undone_is_finished_later(self, journal: Journal, location: str) -> None:
        journal.commit(1)
        write(journal, 1, 0, b"left by a crash in mid-cleaning")
        Journal(location).take_over()
        assert journal.segment(1, 0).read() is None


class TestOwnership:
    def test_second_owner_makes_the_first_fail(self, journal: Journal, location: str) -> None:
        journal.check_owner()
        second = Journal(location)
        second.take_over()
        second.check_owner()
        with pytest.raises(JournalError, match="taken over by another query") as caught:
            journal.check_owner()
        assert "\n" not in str(caught.value)

    def test_the_id_stays_and_is_new_for_a_new_directory(self, journal: Journal, location: str) -> None:
        assert Journal(location).id == journal.id
        assert Journal(f"{location}-other").id != journal.id

    def test_foreign_format_is_refused(self, journal: Journal, location: str) -> None:
        journal._store.replace("journal.json", json.dumps({"format": 99, "id": "x"}).encode())
        with pytest.raises(JournalError, match="format 99"):
            _ = Journal(location).id


def test_a_task_reads_no_record_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fifty partitions, those in which no redelivery is to be expected cost one listing together."""
    journal = Journal(str(tmp_path))
    _ = journal.id
    for partition in range(50):
        write(journal, 1, partition, b"%d" % partition)
        journal.segment(1, partition).mark_acknowledged([1], ["7"] if partition == 7 else ())
    files: list[str] = []
    reads = journal._store._read
    monkeypatch.setattr(journal._store, "_read", lambda name: files.append(name) or reads(name))
    assert journal.expected_redeliveries(0, 1, 50, names, now=NOW) == {"7": 1}
    assert files == ["batches/0000000001/00007.ack"]
    journal.commit(1)
    assert journal.state().unacknowledged.keys() == {"7"}
    assert sum(name.endswith((".ack", ".arrow")) for name in files) == 2


class TestMissing:
    """A host that does not see the driver's journal, and a journal that goes away."""

    @pytest.fixture
    def journal(self, tmp_path: Path) -> Journal:
        made = Journal(str(tmp_path / "journal"))
        _ = made.id
        made.take_over()
        return made

    def test_a_segment_is_written_only_where_its_batch_was_planned(
        self, journal: Journal, tmp_path: Path
    ) -> None:
        for segment in (journal.segment(7, 0), Journal(str(tmp_path / "local")).segment(7, 0)):
            with pytest.raises(JournalMissingError, match="not mounted here"):
                segment.write(content_of(b"a"), DELIVERIES)
            with pytest.raises(JournalMissingError):
                segment.mark_acknowledged([1])
        assert not (tmp_path / "local").exists()
        assert not (tmp_path / "journal/batches").exists()

    def test_only_the_drivers_journal_will_do(self, journal: Journal, tmp_path: Path) -> None:
        journal.check_shared(journal.id)
        other = Journal(str(tmp_path / "other"))
        with pytest.raises(
            JournalMissingError, match="sees no journal there, not the driver's: journalLocation"
        ):
            other.check_shared(journal.id)
        _ = other.id
        with pytest.raises(JournalMissingError, match="sees another journal"):
            other.check_shared(journal.id)

    def test_a_journal_that_was_deleted_is_not_said_to_be_taken_over(
        self, journal: Journal, tmp_path: Path
    ) -> None:
        (tmp_path / "journal").rename(tmp_path / "unmounted")
        with pytest.raises(JournalMissingError, match="is gone: it was deleted or unmounted"):
            journal.check_owner()
        with pytest.raises(JournalMissingError):
            journal.record_plan(1, {})
        assert not (tmp_path / "journal").exists()
        (tmp_path / "unmounted").rename(tmp_path / "journal")
        journal.check_owner()


class TestDisk:
    """Disks that are full, fail, or lose their power."""

    @pytest.fixture
    def journal(self, tmp_path: Path) -> Journal:
        made = Journal(str(tmp_path))
        _ = made.id
        return made

    @pytest.fixture
    def broken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[int, Callable[[Path], bool]], None]]:
        """Makes each sync of the chosen files and folders fail with an error number."""
        fsync = os.fsync

        def breaks(number: int, chosen: Callable[[Path], bool]) -> None:
            def refuse(descriptor: int) -> None:
                if chosen(Path(f"/proc/self/fd/{descriptor}").readlink()):
                    raise OSError(number, os.strerror(number))
                fsync(descriptor)

            monkeypatch.setattr(os, "fsync", refuse)

        yield breaks
        monkeypatch.undo()

    @pytest.mark.parametrize("links", [True, False])
    def test_a_file_that_found_no_room_leaves_nothing(
        self, journal: Journal, tmp_path: Path, broken: Any, links: bool
    ) -> None:
        journal.record_plan(1, {})
        journal._store._hard_links = links  # type: ignore[attr-defined]
        before = sorted(tmp_path.rglob("*"))
        broken(errno.ENOSPC, Path.is_file)
        with pytest.raises(JournalError, match="No space left"):
            write(journal, 1, 0, b"a")
        with pytest.raises(JournalError, match="No space left"):
            journal.take_over()
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_commit_makes_room_for_itself(self, journal: Journal, tmp_path: Path, broken: Any) -> None:
        write(journal, 1, 0, b"a", b"b")
        journal.segment(1, 0).mark_acknowledged([2], ["a"])
        segment = tmp_path / "batches/0000000001/00000.arrow"
        broken(errno.ENOSPC, lambda path: path.is_file() and segment.exists())
        journal.commit(1)
        assert journal.state().committed == 1
        assert journal.state().unacknowledged.keys() == {"a"}
        assert not segment.parent.exists()

    def test_a_commit_that_is_still_being_written_cleans_nothing(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An object store says so where a request that was given up is still under way."""
        write(journal, 1, 0, b"a")
        monkeypatch.setattr(type(journal._store), "create", lambda *_: False)
        with pytest.raises(JournalError, match="commit of batch 1 is still being written"):
            journal.commit(1)
        assert journal.state().committed == 0
        monkeypatch.undo()
        journal.commit(1)
        assert journal.state().committed == 1

    def test_what_a_dead_writer_left_is_swept(self, journal: Journal, tmp_path: Path) -> None:
        write(journal, 1, 0, b"a")
        journal.commit(0)
        left = [
            tmp_path / f".owner.json.{uuid.uuid4().hex}",
            tmp_path / f"batches/0000000001/.00001.arrow.{uuid.uuid4().hex}",
            tmp_path / f"batches/0000000001/.torn-{uuid.uuid4().hex}",
        ]
        for path in left:
            path.write_bytes(b"half")
        journal.take_over()
        assert not any(path.exists() for path in left)
        assert read(journal, 1, 0) == ["a"]

    def test_folders_outlive_a_power_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The name of each new folder and file is synced in the folder that it stands in."""
        synced: set[Path] = set()
        fsync = os.fsync

        def note(descriptor: int) -> None:
            synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", note)
        journal = Journal(str(tmp_path / "of/several/folders"))
        _ = journal.id
        write(journal, 1, 0, b"a")
        journal.commit(0)
        made = {path.parent for path in tmp_path.rglob("*")}
        assert made <= synced

    @pytest.mark.parametrize(("number", "passes"), [(errno.EIO, False), (errno.EINVAL, True)])
    def test_a_folder_that_fails_to_sync_is_an_error_and_one_that_cannot_is_none(
        self, journal: Journal, broken: Any, number: int, passes: bool
    ) -> None:
        broken(number, Path.is_dir)
        if passes:
            assert write(journal, 1, 0, b"a")
        else:
            with pytest.raises(JournalError, match="Input/output error"):
                write(journal, 1, 0, b"a")


def test_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    class Overwriting(LocalStore):
        def _create(self, name: str, content: bytes, until: float) -> bool:
            self.replace(name, content)
            return True

    with pytest.raises(JournalError, match="cannot create a file exclusively"):
        Overwriting(str(tmp_path)).probe()


def test_location_that_cannot_be_written_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="driver and executors can both") as caught:
        _ = Journal(str(tmp_path / "file" / "journal")).id
    assert "\n" not in str(caught.value)


class TestTornSegments:
    """On a mount without hard links a writer may die in mid-file."""

    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        return LocalStore(str(tmp_path))

    def whole(self, tmp_path: Path) -> bytes:
        other = Journal(str(tmp_path / "other"))
        _ = other.id
        write(other, 1, 0, b"whole")
        return (tmp_path / "other/batches/0000000001/00000.arrow").read_bytes()

    def test_torn_file_reads_as_absent_and_is_written_anew(self, store: LocalStore, tmp_path: Path) -> None:
        content = self.whole(tmp_path)
        (tmp_path / "s.arrow").write_bytes(content[: len(content) // 2])
        assert store.read("s.arrow") is None
        assert store.create("s.arrow", content)
        assert store.read("s.arrow") == content

    @pytest.mark.parametrize("content", [b"", b'{"cleaned":0,'])
    def test_torn_commits_plans_and_ack_records_are_as_if_they_were_not_written(
        self, store: LocalStore, tmp_path: Path, content: bytes
    ) -> None:
        journal = Journal(str(tmp_path))
        _ = journal.id
        journal.commit(1)
        (tmp_path / "commits/0000000002").write_bytes(content)
        assert journal.state().committed == 1
        journal.take_over()
        journal.commit(2)
        assert journal.state().committed == 2
        for name in ("plan.json", "00000.ack"):
            (tmp_path / "batches/0000000003").mkdir(parents=True, exist_ok=True)
            (tmp_path / "batches/0000000003" / name).write_bytes(content)
        assert journal.plan(3) is None
        assert journal.record_plan(3, {"batch": 3}) == {"batch": 3}
        assert not journal.segment(3, 0).acknowledged()
        journal.segment(3, 0).mark_acknowledged([1])
        assert journal.segment(3, 0).ack_record() == AckRecord([1], Counter(), Counter())

    def test_whole_file_is_never_set_aside(self, store: LocalStore, tmp_path: Path) -> None:
        content = self.whole(tmp_path)
        assert store.create("s.arrow", content)
        assert not store.create("s.arrow", content + content)
        assert store.read("s.arrow") == content


@pytest.mark.parametrize("secret", ["key:secret@", "key:se/cret@"])
def test_no_error_of_a_store_shows_a_login(secret: str) -> None:
    for scheme in ("nowhere", "s3", "abfss"):
        with pytest.raises(OptionError) as raised:
            open_store(f"{scheme}://{secret}bucket/x", "checkpoint")
        assert str(raised.value).startswith("[BABELQUEUE_INVALID_OPTION] checkpoint ")
        assert "cret" not in str(raised.value)


@pytest.mark.parametrize("location", ["hdfs://namenode/x", "dbfs:/Volumes/x", "memory://x", "https://host/x"])
def test_other_storage_is_refused_with_what_to_use(location: str) -> None:
    with pytest.raises(OptionError, match=r"has the scheme '\w+:'.*use a path, or a URL .* s3://.*mount"):
        open_store(location)


def test_the_start_of_a_query_leaves_the_files_of_others(tmp_path: Path) -> None:
    """A journal in a home or project folder."""
    theirs = [tmp_path / name for name in (".env", ".netrc", ".git", ".owner.json", ".torn-notes")]
    for file in theirs:
        file.write_text("secret")
    for unfinished in (f".owner.json.{'0' * 32}", f".torn-{'a' * 32}.json"):
        (tmp_path / unfinished).write_text("{")
    for _ in range(2):
        Journal(str(tmp_path)).take_over()
    assert sorted(tmp_path.glob(".*")) == sorted(theirs)


def test_a_message_of_several_segments_is_yielded_by_one(journal: Journal) -> None:
    journal.record_plan(1, {})
    held = {
        partition: [f"{number}" for number in range(partition * 5, partition * 5 + 20)]
        for partition in range(8)
    }
    ready = threading.Barrier(len(held))

    def yielded(partition: int) -> list[str]:
        ready.wait(60)
        left = Journal(journal.location).left_to_others(1, partition, held[partition])
        return [name for name in held[partition] if name not in left]

    with ThreadPoolExecutor(len(held)) as pool:
        found = list(pool.map(yielded, held))
        assert Counter(name for some in found for name in some) == Counter(
            str(number) for number in range(55)
        )
        assert list(pool.map(yielded, held)) == found


def test_a_location_that_cannot_be_created(tmp_path: Path) -> None:
    """Storage that is not mounted, where a link leads to it."""
    (tmp_path / "mount").symlink_to(tmp_path / "gone")
    with pytest.raises(JournalError, match=r"journalLocation .*/mount/orders cannot be created") as refused:
        _ = Journal(str(tmp_path / "mount/orders")).id
    assert not isinstance(refused.value, JournalMissingError)
