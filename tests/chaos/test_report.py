"""What a run keeps: results by broker, a report without this machine's names, a resumed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos import report, tables
from chaos.__main__ import main
from chaos.checker import Verdict
from chaos.notes import note
from chaos.plan import keep, plan

FAULT = {"kind": "cut", "hit": "three times", "pause": 1.0, "at": 1.0, "until": 2.0, "recovered": 0.5}


def finished(folder: Path, verdict: Verdict) -> Path:
    """A run in which Redis has been tried."""
    keep(plan(7, 1, ["redis"]), folder / "plan.json")
    (folder / "redis").mkdir()
    note(folder / "redis" / "faults", FAULT)
    note(folder / "redis" / "failures", ["stream", 1.0, "x [BABELQUEUE_BROKER_UNREACHABLE] Redis"])
    note(folder / "redis" / "failures", ["stream", 1.0, f"No such file: {folder}"])
    report.keep(folder, "redis", verdict, 60.0)
    return folder


def test_a_resumed_run_tries_no_broker_again_that_has_a_result(tmp_path: Path) -> None:
    assert main(["--resume", str(finished(tmp_path, Verdict(confirmed=5)))]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["setups"]["redis"]["confirmed"] == 5


@pytest.mark.parametrize(
    "bad", [Verdict(lost=["table: 7"]), Verdict(changed=[3]), Verdict(unexpected=["7 twice"])]
)
def test_a_run_that_broke_a_promise_fails(
    tmp_path: Path, bad: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--resume", str(finished(tmp_path, bad))]) == 1
    assert "not as promised: redis" in capsys.readouterr().out


def test_a_report_names_no_path_of_this_machine(tmp_path: Path) -> None:
    main(["--resume", str(finished(tmp_path, Verdict()))])
    text = (tmp_path / "report.json").read_text()
    assert str(tmp_path) not in text
    whole = json.loads(text)
    assert whole["setups"]["redis"]["failures"] == {"BROKER_UNREACHABLE": 1, "others": 1}
    assert list(tables.failures(whole)) == [["`BABELQUEUE_BROKER_UNREACHABLE`", "1"], ["others", "1"]]
    assert list(tables.faults(whole)) == [["cut", "1", "0.5", "0.5"]]
    assert [row[:4] for row in tables.setups(whole)] == [["Redis", "1", "0", "0"]]


def test_a_record_keeps_the_setups_of_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"setups": {"redis": {"confirmed": 1}, "kafka": {"confirmed": 2}}}))
    monkeypatch.setattr(report, "OF_RECORD", record)
    (tmp_path / "run").mkdir()
    assert main(["--resume", str(finished(tmp_path / "run", Verdict(confirmed=5))), "--record"]) == 0
    setups = json.loads(record.read_text())["setups"]
    assert {name: found["confirmed"] for name, found in setups.items()} == {"redis": 5, "kafka": 2}
    assert setups["redis"]["seed"] == 7


def test_an_unknown_broker_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--brokers", "redis,abacus"])
    assert "no such broker: abacus" in capsys.readouterr().err
