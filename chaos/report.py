"""What a run has found, as JSON: `docs/chaos.json` has the result of record, which `chaos.tables` shows."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.record import ROOT, commit, machine, versions
from chaos.checker import Verdict
from chaos.notes import notes
from chaos.plan import Plan
from chaos.setups import SETUPS
from chaos.trial import failures_of

OF_RECORD = ROOT / "docs" / "chaos.json"
SHOWN = 20
"""Texts of a kind that a result keeps."""


def result_file(folder: Path, name: str) -> Path:
    """Where a run keeps what it found of a setup."""
    return folder / f"{name}.json"


def keep(folder: Path, name: str, verdict: Verdict, seconds: float) -> None:
    """Write what was found of a setup."""
    found = {
        "title": SETUPS[name].title,
        **asdict(verdict),
        "good": verdict.good,
        "lost": len(verdict.lost),
        "examples": [*verdict.lost, *verdict.unexpected][:SHOWN],
        "seconds": round(seconds),
        "faults": list(notes(folder / name / "faults")),
        "failures": failures_of(folder / name),
    }
    result_file(folder, name).write_text(json.dumps(found, indent=1) + "\n")


def found_of(folder: Path, name: str) -> dict[str, Any]:
    """Read what was found of a setup."""
    found: dict[str, Any] = json.loads(result_file(folder, name).read_text())
    return found


def line(folder: Path, name: str) -> str:
    """Say what was found of a setup, in a line and one for each thing that must not be."""
    found = found_of(folder, name)
    said = [
        f"{name:14} {'good' if found['good'] else 'BAD':4} {len(found['faults'])} faults, "
        f"{found['confirmed']} messages, lost {found['lost']}, {found['replayed']} of {found['batches']} "
        f"batches replayed, {len(found['changed'])} of them changed, twice {found['twice']}, "
        f"handlers twice {found['handled_twice']}, {found['seconds']} s"
    ]
    return "\n  ".join(said + found["examples"])


def finish(folder: Path, planned: Plan, *, record: bool) -> int:
    """Write the report of a run; 1 when something did not hold.

    With `record`, setups that this run has not tried keep what the result of record says of them.
    """
    results = {name: found_of(folder, name) for name in planned.faults}
    circumstances = {
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "seed": planned.seed,
        "faulted": round(planned.seconds),
    }
    setups = {name: {**circumstances, **_public(found)} for name, found in results.items()}
    whole = {"machine": machine(), "versions": versions("redis"), "setups": setups}
    (folder / "report.json").write_text(json.dumps(whole, indent=1) + "\n")
    if record:
        earlier = json.loads(OF_RECORD.read_text())["setups"] if OF_RECORD.exists() else {}
        kept = {name: found for name in SETUPS if (found := setups.get(name) or earlier.get(name))}
        OF_RECORD.write_text(json.dumps({**whole, "setups": kept}, indent=1) + "\n")
    count = sum(len(found["faults"]) for found in results.values())
    bad = [name for name, found in results.items() if not found["good"]]
    print(f"{count} faults, {sum(found['lost'] for found in results.values())} messages lost")
    print(f"not as promised: {', '.join(bad)}" if bad else "all as promised", f"({folder / 'report.json'})")
    return int(bool(bad))


def _public(found: dict[str, Any]) -> dict[str, Any]:
    """A result without what names this machine: errors have paths."""
    faults = [{name: fault[name] for name in ("kind", "hit", "recovered")} for fault in found["faults"]]
    failures = {name: count for name, count in found["failures"].items() if name.isupper()}
    others = sum(found["failures"].values()) - sum(failures.values())
    return {**found, "faults": faults, "failures": {**failures, **({"others": others} if others else {})}}
