"""The codec sections of the published conformance suite, through the vectorised codec."""

import base64
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.envelope import (
    ENVELOPE_SCHEMA,
    EnvelopeError,
    dead_letter,
    decode,
    encode,
    set_attempts,
    validate,
)
from babelqueue_spark.worker import Backoff
from tests.envelope.bodies import array, compact, row
from tests.envelope.conformance import cases, fixture, manifest
from tests.envelope.payload import violations

Case = dict[str, Any]
MISSING = object()


def of_section(name: str) -> Callable[[Any], Any]:
    found = cases(name)
    return pytest.mark.parametrize("case", [case for _, case in found], ids=[case_id for case_id, _ in found])


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: true is not 1, `{}` is not `[]`, but 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return (type(left) in (int, float) and type(right) in (int, float) and left == right) or left == right


def at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        document = document[int(key)] if isinstance(document, list) else document.get(key, MISSING)
        if document is MISSING:
            return MISSING
    return document


def assert_holds(document: Any, case: Case, field: str = "expect_preserved") -> None:
    for pointer, value in case.get(field, {}).items():
        assert same(at(document, pointer), value), pointer
    for pointer in case.get("expect_absent_after_reencode", []):
        assert at(document, pointer) is MISSING, pointer


def retried(body: bytes) -> Any:
    """The body as a retry sends it: with one more attempt."""
    attempts = row(body)["attempts"] + 1
    return set_attempts(array(body), pa.array([attempts], pa.int32()))


def produced(case: Case, **changes: Any) -> bytes:
    """What our producer writes for the `urn`, `queue`, `data` and `meta` of a case."""
    extra = case.get("meta_entries", list({**case.get("meta", {}), **case.get("extras_meta", {})}.items()))
    message = {
        "job": case["urn"],
        "trace_id": case.get("trace_id", "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b"),
        "data": compact(case.get("data", {})),
        "meta": {
            "id": "f1e2d3c4-b5a6-4789-90ab-cdef01234567",
            "queue": case.get("queue", "orders"),
            "lang": "python",
            "schema_version": 1,
            "created_at": datetime(2026, 1, 1, tzinfo=UTC),
            "extra": [(key, compact(value)) for key, value in extra],
        },
        "attempts": 0,
    }
    columns = {name: pa.array([value], ENVELOPE_SCHEMA.field(name).type) for name, value in message.items()}
    columns |= {name: pa.array([value]) for name, value in case.get("extras_top", {}).items()}
    [body] = encode(pa.RecordBatch.from_pydict(columns)).to_pylist()
    return bytes(body)


@of_section("cases")
def test_cases(case: Case) -> None:
    decoded = row(fixture(case["file"]))
    assert (decoded["error"] is None) == case["valid"]
    if not case["valid"]:
        return
    expected = case["expect"]
    assert decoded["job"] == expected["urn"]
    assert decoded["attempts"] == expected["attempts"]
    assert decoded["meta"]["lang"] == expected["lang"]
    assert decoded["meta"]["schema_version"] == expected["schema_version"]
    assert "data" not in expected or same(json.loads(decoded["data"]), expected["data"])
    block = dict(decoded["dead_letter"] or {})
    if block:
        block["failed_at"] = int(block["failed_at"].timestamp() * 1000)
    for key, value in expected.get("dead_letter", {}).items():
        assert same(block[key], value), key
    assert decoded["meta"]["id"]
    assert decoded["trace_id"]


@of_section("roundtrip")
def test_roundtrip(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    body = fixture(case["file"])
    assert row(body)["error"] is None
    assert caplog.records == []
    bodies = retried(body)
    if "apply_dead_letter" in case:
        block = {
            "attempts": case["expect_attempts"],
            "failed_at": datetime.now(UTC),
            **case["apply_dead_letter"],
        }
        bodies = dead_letter(bodies, pa.array([block], ENVELOPE_SCHEMA.field("dead_letter").type))
    document = json.loads(bodies[0].as_py())
    assert same(document["attempts"], case["expect_attempts"])
    assert_holds(document, case)
    for key, value in case.get("expect_dead_letter", {}).items():
        assert same(document["dead_letter"][key], value), key


@of_section("data_shape")
def test_data_shape(case: Case) -> None:
    if case["mode"] == "encode":
        assert compact(json.loads(produced(case))["data"]) == case["expect_encoded_data_json"]
    else:
        assert (row(fixture(case["file"]))["error"] is None) == case["valid"]


@of_section("forbidden_keys")
def test_forbidden_keys(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    body = fixture(case["file"])
    decoded = decode(array(body))
    assert decoded.column("error").to_pylist() == [None]
    assert any(case["forbidden_key"] in record.getMessage() for record in caplog.records)
    assert_holds(json.loads(retried(body)[0].as_py()), case)
    assert_holds(json.loads(encode(decoded.drop_columns(["error"]))[0].as_py()), case)


@of_section("extension_write")
def test_extension_write(case: Case) -> None:
    body = produced(case)
    assert_holds(json.loads(body), case, "expect_envelope")
    again = json.loads(retried(body)[0].as_py())
    assert_holds(again, case, "expect_envelope")
    assert same(again["attempts"], 1)


@of_section("encode_reject")
def test_encode_reject(case: Case) -> None:
    with pytest.raises(EnvelopeError) as raised:
        produced(case)
    key = case.get("offending_key", "").rpartition("/")[2]
    assert key in str(raised.value) or "meta_entries" in case


@of_section("trim")
def test_trim(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    if case["mode"] == "make":
        if case["expect"] == "reject":
            with pytest.raises(EnvelopeError):
                produced(case)
            return
        document = json.loads(produced(case))
        assert {key: document[key] for key in case["expect"]} == case["expect"]
        return
    body = fixture(case["file"])
    decoded = row(body)
    if case["mode"] == "decode":
        assert_identity(decoded, case, caplog)
    elif case["mode"] == "accepts":
        assert (decoded["error"] is None) == case["expect_accepts"]
        assert (decoded["error"] not in ("poison", "missing_urn")) == case["expect_decode_ok"]
    else:
        document = json.loads(retried(body)[0].as_py())
        assert document["attempts"] == case["expect_attempts"]
        assert_holds(document, case)


@of_section("job_type")
def test_job_type(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    assert_identity(row(fixture(case["file"])), case, caplog)


def assert_identity(decoded: Case, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    warned = any(record.levelno == logging.WARNING for record in caplog.records)
    if case["valid"]:
        assert decoded["job"] == case["expect"]["urn"]
        assert warned == case["expect_warning"]
    else:
        assert decoded["error"] == "missing_urn"


@of_section("identity_verdict")
def test_identity_verdict(case: Case) -> None:
    [reason] = validate(array(case["body"].encode())).to_pylist()
    assert ("poison" if reason in ("poison", "missing_urn") else "ok") == case["expect"]


@of_section("poison_dlq")
def test_poison_dlq(case: Case) -> None:
    encoded = case.get("body_base64")
    body = case["body"].encode() if encoded is None else base64.b64decode(encoded)
    block = {"reason": "poison", "failed_at": datetime.now(UTC), "original_queue": "orders", "attempts": 0}
    blocks = pa.array([block], ENVELOPE_SCHEMA.field("dead_letter").type)
    assert_poison_record(dead_letter(array(body), blocks)[0].as_py().decode(), case)


def assert_poison_record(text: str, case: Case) -> None:
    record = json.loads(text)
    block = record.pop("dead_letter")
    assert (block["reason"], block["original_queue"]) == ("poison", "orders")
    expected = case["expect"]
    if expected["shape"] != "splice_or_wrapper" or same(record, expected["record"]):
        assert same(record, expected["record"])
        return
    assert all(literal in text for literal in expected["splice_literals"])
    assert record.keys() == set(expected["splice_keys"])


@of_section("payload_schema")
def test_payload_schema(case: Case) -> None:
    assert fits_schema(case, "payload_schema") == case["valid"]


@of_section("payload_schema_unicode")
def test_payload_schema_unicode(case: Case) -> None:
    assert fits_schema(case, "payload_schema_unicode") == case["valid"]


def fits_schema(case: Case, section: str) -> bool:
    [violation] = violations(pa.array([compact(case["data"])]), manifest()[section]["schema"]).to_pylist()
    return violation is None


@of_section("retry_backoff")
def test_retry_backoff(case: Case) -> None:
    backoff = Backoff(
        base=case["retry_backoff"],
        multiplier=case["retry_backoff_multiplier"],
        longest=case["retry_backoff_max"],
        jitter=case["retry_jitter"],
    )
    delays = backoff.delays(pa.array([case["n"]] * 20)).to_pylist()
    if case["retry_jitter"] == "none":
        assert delays == [case["expect_delay_seconds"]] * 20
    else:
        limits = case["expect_delay_range_seconds"]
        assert all(limits["min"] <= delay <= limits["max"] for delay in delays)
