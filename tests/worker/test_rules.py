"""The rules of the worker without a broker: sections of the conformance suite, admission, decisions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.pulsar import PulsarBinding
from babelqueue_spark.envelope import Reason
from babelqueue_spark.errors import JournalError
from babelqueue_spark.worker import IdempotencyStore, Record, SqlStore
from babelqueue_spark.worker.admission import Admission
from babelqueue_spark.worker.decisions import DecisionLog, LogEntry
from babelqueue_spark.worker.outcomes import Failure, Outcome, Policy, UnknownUrn, Verdict
from babelqueue_spark.worker.rows import INPUT, Rows
from tests.envelope.conformance import manifest
from tests.worker.gates import DROPPED, STRATEGIES, gate_cases

GATED = ["sqs", "pulsar", "artemis", "asb"]


@pytest.mark.parametrize("section", [*GATED, "kafka"])
def test_schema_version_gate(section: str) -> None:
    """A number of the broker's arrives as its text."""
    block = manifest()[section]["schema_version_gate"]
    values = [None if case.get("absent") else case["value"] for case in block["cases"]]
    headers = [
        None if case.get("absent") else [(block["property"], None if value is None else str(value))]
        for case, value in zip(block["cases"], values, strict=True)
    ]
    table = pa.table({"headers": pa.array(headers, INPUT.field("headers").type)})
    for field in INPUT:
        if field.name != "headers":
            table = table.append_column(field, pa.nulls(len(values), field.type))
    rows = Rows(table.select(INPUT.names).to_batches())
    found = ["reject" if rows.is_gated(row) else "decode" for row in range(len(values))]
    assert found == [case["expect"] for case in block["cases"]]


@pytest.mark.parametrize("section", [f"version_gate_{broker}" for broker in GATED])
def test_version_gate(section: str) -> None:
    """A dead letter has the body as it came; whether it can be written is up to the broker."""
    run = 0
    for strategy in STRATEGIES:
        found = policy(on_unknown_urn=strategy or "fail").gated(0)
        for case in gate_cases(section, strategy):
            assert case["expect"]["outcome"] in ("dlq_raw", "unsettled")
            assert (found.outcome, found.annotated) == (Outcome.DEAD_LETTERED, False)
            run += 1
    assert (run, len(manifest()[section]["cases"])) == (11, 17)


@pytest.mark.parametrize("section", [f"version_gate_{broker}" for broker in GATED])
def test_what_the_suite_drops_of_a_newer_version_is_kept(section: str) -> None:
    """A deviation: documents 000 and 001 of the envelope quarantine it."""
    cases = gate_cases(section, "delete")
    assert {case["name"] for case in cases if case["expect"]["outcome"] == "ack"} == DROPPED
    found = policy(on_unknown_urn="delete").gated(0)
    assert (found.outcome, found.annotated) == (Outcome.DEAD_LETTERED, False)


def test_an_admission_goes_on_behind_many_rows_that_need_no_claim(tmp_path: Path) -> None:
    ids = [None] * 1_000 + [f"i{number}" for number in range(600)] + ["last"]
    with SqlStore(f"sqlite:///{tmp_path}/store.db") as store:
        admission = Admission(store, "a" * 32, ids, lambda row: row in (1_100, 1_600))
        assert admission.record(1_100).standing == "granted"
        assert admission.record(1_600).standing == "granted"
        assert store.claim(["last"], "b" * 32)[0].standing == "held"


class Noted(IdempotencyStore):
    """Grants everything, and writes down what it was asked for."""

    lease = 60

    def __init__(self) -> None:
        self.claims: list[list[str]] = []

    def claim(self, ids: Sequence[str], owner: str) -> list[Record]:
        self.claims.append([*ids])
        return [Record("granted") for _ in ids]

    def remember(self, message_id: str, owner: str, result: bytes = b"") -> None: ...

    def release(self, ids: Sequence[str], owner: str) -> None: ...

    def forget(self, ids: Sequence[str]) -> None: ...

    def close(self) -> None: ...


def test_claims_are_made_anew_when_half_of_their_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("babelqueue_spark.worker.admission.time.monotonic", lambda: now)
    store = Noted()
    admission = Admission(store, "a" * 32, ["a", "b", "c", "d"], lambda _: True)
    for row in range(4):
        assert admission.record(row).standing == "granted"
        admission.handled(row)
        now += 20
    assert store.claims == [["a", "b", "c", "d"], ["c", "d"]]


def test_an_attempt_that_comes_too_late_decides_nothing(tmp_path: Path) -> None:
    late, next_one = DecisionLog(str(tmp_path), "run", 0), DecisionLog(str(tmp_path), "run", 1)
    late.begin()
    late.write("first", LogEntry({}))
    next_one.begin()
    with pytest.raises(JournalError, match="this came too late"):
        late.write("second", LogEntry({}))
    assert late.read("second") is None
    assert next_one.write("first", LogEntry({"a": 1})).notes == {"a": 1}


EXHAUSTION = manifest()["pulsar_exhaustion"]["cases"]
DESTROYS_POISON = "poison-delete-dlq-on-drops"
"""Our poison becomes a dead letter whatever the strategy."""
EXHAUSTION_CASES = [
    case
    for case in EXHAUSTION
    if (case["dead_letter"] or case.get("on_unknown_urn") == "dead_letter")
    and case["name"] != DESTROYS_POISON
]
"""Without those of a consumer whose dead letters are off, which ours never are."""
OUTCOMES = {Outcome.RETRIED: "retry", Outcome.DEAD_LETTERED: "dlq", Outcome.DROPPED: "drop"}


@pytest.mark.parametrize("case", EXHAUSTION_CASES, ids=[case["name"] for case in EXHAUSTION_CASES])
def test_pulsar_exhaustion(case: dict[str, Any]) -> None:
    found = verdict(case)
    expected = case["expect"]
    assert OUTCOMES[found.outcome] == expected["outcome"]
    if expected["outcome"] == "dlq":
        assert found.reason == expected["reason"]
        assert found.attempts == expected.get("dead_letter_attempts", found.attempts)


def policy(on_unknown_urn: UnknownUrn, max_attempts: int = 3) -> Policy:
    return Policy(max_attempts=max_attempts, unknown_urn=on_unknown_urn, release_delay=1)


def verdict(case: dict[str, Any]) -> Verdict:
    rules = policy(case.get("on_unknown_urn", "fail"), case.get("max_attempts", 3))
    headers = [("bq-attempts", case["bq_attempts"])] if "bq_attempts" in case else []
    delivered = deliveries(1, body=[b""], headers=[headers], count=[case["redelivery_count"] + 1])
    with PulsarBinding(BindingConfig(url="pulsar://127.0.0.1:6650")) as binding:
        in_body = pa.array([case.get("body_attempts")], pa.int32())
        [attempts] = binding.attempts(in_body, delivered).to_pylist()
    match case["kind"]:
        case "failed":
            return rules.failed(attempts, Failure())
        case "unknown_urn":
            return rules.unknown(attempts)
        case _:
            return rules.refused(attempts, Reason.POISON)


def test_all_cases_but_those_without_dead_letters_are_run() -> None:
    left_out = {case["name"] for case in EXHAUSTION} - {case["name"] for case in EXHAUSTION_CASES}
    off = {name for name in left_out if "dlq-off" in name}
    assert left_out - off == {DESTROYS_POISON}
    assert (len(EXHAUSTION_CASES), len(EXHAUSTION)) == (17, 29)


@pytest.mark.parametrize(
    ("named", "attempts"),
    [
        ("3", 3), ("007", 7), ("0", 0), ("000", 0), ("2147483647", 2147483647),
        ("2147483648", 1), ("9" * 5000, 1), ("+3", 1), ("3 ", 1), ("3\n", 1), ("", 1), ("\u0663", 1), (None, 1),
    ],
)  # fmt: skip
def test_the_attempts_that_a_pulsar_property_names(named: str | None, attempts: int) -> None:
    headers = None if named is None else [("bq-attempts", named)]
    delivered = deliveries(1, body=[b""], headers=[headers], count=[None])
    with PulsarBinding(BindingConfig(url="pulsar://127.0.0.1:6650")) as binding:
        assert binding.attempts(pa.array([1], pa.int32()), delivered).to_pylist() == [attempts]
