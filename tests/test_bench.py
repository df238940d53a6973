"""What a bench keeps: figures of record, with their spread, and where the documentation has them."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from bench import record
from bench.chart import draw
from bench.peers.compare import kill
from bench.peers.programs import Peer
from bench.peers.run import Run, pace
from bench.table import Measured, Row, in_turns, rate, row
from scripts.generate_docs import PART, comparisons

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
#: A figure that only a bench can give.
FIGURE = re.compile(
    r"[\d,.]+ (?:messages|bodies) a second|\d(?:\.\d+)? ?\u00d7|\b\d+ times (?:as fast|faster|the speed)"
)


def rows(theirs: float = 2.0) -> list[Row]:
    found = in_turns({"ours": iter([4.0, 1.0, 3.0]).__next__})
    return [row("ours to nothing", found["ours"], "a peer", theirs, 1.0)]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "OF_RECORD", tmp_path / "bench.json")
    monkeypatch.setattr(record, "RUNS", tmp_path / "runs")
    return tmp_path / "bench.json"


def test_a_row_has_the_median_and_its_spread() -> None:
    (found,) = rows()
    assert (found["ours"], found["ours_spread"], found["theirs_spread"]) == (3.0, (1.0, 4.0), (2.0, 2.0))
    assert found["ratio"] == 1.5


def test_a_spread_survives_another_process() -> None:
    assert pickle.loads(pickle.dumps(Measured([1.0, 5.0, 2.0]))).samples == (1.0, 5.0, 2.0)


def test_a_run_on_an_empty_queue_is_refused() -> None:
    assert rate(2, lambda: 2, repeats=1) > 0
    with pytest.raises(ValueError, match="moved 0 messages instead of 2"):
        rate(2, lambda: 0, repeats=1)


def test_a_module_replaces_its_own_rows_only(kept: Path) -> None:
    record.keep("redis", rows(), 1.0)
    record.keep("codec", rows(), 1.0)
    record.keep("redis", rows(theirs=3.0), 1.0)
    found = record.recorded(kept)
    assert {name: found[name]["rows"][0]["theirs"] for name in found} == {"codec": 2.0, "redis": 3.0}


def test_a_record_tells_machine_and_versions_but_no_host_and_no_path(kept: Path) -> None:
    record.keep("redis", rows(), 1.0)
    found = json.loads(kept.read_text())["redis"]
    assert {"cores", "cpu", "gib"} == {*found["machine"]}
    assert {"python", "pyspark", "redis", "server redis-server"} <= {*found["versions"]}
    for text in [kept.read_text(), *(file.read_text() for file in ROOT.glob("docs/bench.*"))]:
        assert socket.gethostname() not in text
        assert str(ROOT) not in text


def test_the_chart_has_each_row_and_is_the_same_each_time(tmp_path: Path) -> None:
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        draw({"redis": {"rows": rows()}}, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    comments = files[0].read_text()
    assert "ours to nothing / a peer" in comments
    ElementTree.fromstring(comments)


def test_a_table_says_median_spread_ratio_and_floor() -> None:
    last = comparisons([dict(each) for each in rows(theirs=2000.0)]).splitlines()[-1]
    assert last == "| ours to nothing | 3 (1-4) | a peer | 2,000 | 0.00 (1) |"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_of_a_bench_come_from_the_record(page: Path) -> None:
    assert FIGURE.findall(PART.sub("", page.read_text())) == []


def test_a_run_counts_what_was_done_and_by_which_process(tmp_path: Path) -> None:
    run = Run("redis://", tmp_path, count=4, seconds=0.0)
    for number in (0, 1, 1, 2):
        run.work(number)
    assert (run.records(), run.last_process()) == (4, os.getpid())
    assert run.times_done() == {0: 1, 1: 2, 2: 1}


def test_a_rate_waits_for_what_is_missing_behind_repeats(tmp_path: Path) -> None:
    run = Run("redis://", tmp_path, count=10, seconds=0.0)
    numbers = iter([*range(9), 8, 9])
    assert pace(run, lambda: run.work(next(numbers))) > 0
    assert list(numbers) == []


def test_a_run_without_progress_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.run.watch", lambda *_: (0, 0.0))
    with pytest.raises(TimeoutError, match="0 of 10 done"):
        pace(Run("redis://", tmp_path, count=10, seconds=0.0), lambda: None)


def test_what_ended_of_a_peer_is_started_again_and_all_of_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.peers.programs.HOME", tmp_path)
    run = Run("redis://", tmp_path, count=1, seconds=0.0)
    others = {*psutil.Process().children()}

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child not in others]

    with Peer("sleeper", no_op=("sleep 60", "sleep 61"), waiting=()).running(run) as supervise:
        first, second = started()
        kill(first.pid)
        first.wait()
        supervise()
        again = started()
        assert second in again
        assert first not in again
        assert len(again) == 2
    assert started() == []


def test_only_an_own_process_is_killed() -> None:
    with pytest.raises(AssertionError):
        kill(os.getppid())
