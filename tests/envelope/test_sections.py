"""Whole sections of the conformance suite through a Spark DataFrame, and what the suite holds in all."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import lit

from babelqueue_spark import functions as bq
from tests.envelope.conformance import cases, fixture, ids, manifest

Case = dict[str, Any]

CODEC = {
    "cases": 8,
    "roundtrip": 9,
    "data_shape": 2,
    "forbidden_keys": 7,
    "extension_write": 5,
    "encode_reject": 13,
    "trim": 35,
    "job_type": 11,
    "identity_verdict": 97,
    "poison_dlq": 43,
    "payload_schema": 7,
    "payload_schema_unicode": 6,
    "retry_backoff": 18,
}
"""Section → cases, of the sections that a codec has to pass."""
ELSEWHERE = {
    "traceparent": "tests/envelope/test_trace.py",
    "kafka_poison": "tests/envelope/test_sections.py",
    "redis": "tests/bindings/test_redis_conformance.py",
    "redis_delay": "tests/bindings/test_redis_conformance.py",
    "redis_layout": "tests/bindings/test_redis_conformance.py",
    "sqs": "tests/bindings/test_sqs_conformance.py",
    "delay": "tests/bindings/test_sqs_conformance.py",
    "rabbitmq": "tests/bindings/test_rabbitmq.py",
    "idempotency": "tests/worker/test_idempotency.py",
    "version_gate_sqs": "tests/worker/test_rules.py",
    "version_gate_asb": "tests/worker/test_rules.py",
    "version_gate_pulsar": "tests/worker/test_rules.py",
    "pulsar": "tests/bindings/test_pulsar_conformance.py",
    "pulsar_exhaustion": "tests/worker/test_rules.py",
    "artemis": "tests/bindings/test_artemis_conformance.py",
    "version_gate_artemis": "tests/worker/test_rules.py",
    "asb": "tests/bindings/test_servicebus_conformance.py",
    "kafka": "tests/bindings/test_kafka_conformance.py",
    "backoff": "tests/bindings/test_kafka_conformance.py",
}
"""Section → the tests of another part that run it now."""


PAGE = Path(__file__).parents[2] / "docs/conformance.md"


def body_of(case: Case) -> bytes:
    if "file" in case:
        return fixture(case["file"])
    return base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()


def through_spark(spark: Any, section: str, *columns: Any) -> list[tuple[Case, Any]]:
    """The cases of a section that have a body, each with its row of a DataFrame of them all."""
    with_body = [case for _, case in cases(section) if {"file", "body", "body_base64"} & case.keys()]
    frame = spark.createDataFrame([(body_of(case),) for case in with_body], "body binary").coalesce(1)
    rows = frame.select(bq.decode("body").alias("e"), "body").select("e.*", "body", *columns).collect()
    return list(zip(with_body, rows, strict=True))


@pytest.mark.spark
@pytest.mark.parametrize("section", ["cases", "data_shape", "roundtrip", "forbidden_keys"])
def test_valid_is_what_has_no_error(spark: Any, section: str) -> None:
    for case, row in through_spark(spark, section):
        assert (row.error is None) == case.get("valid", True), case


@pytest.mark.spark
@pytest.mark.parametrize("section", ["trim", "job_type"])
def test_identities(spark: Any, section: str) -> None:
    for case, row in through_spark(spark, section):
        if "valid" in case:
            assert (row.error not in ("poison", "missing_urn")) == case["valid"], case
            assert not case["valid"] or row.job == case["expect"]["urn"]
        elif "expect_accepts" in case:
            assert (row.error is None) == case["expect_accepts"], case


@pytest.mark.spark
@pytest.mark.parametrize("section", ["identity_verdict", "kafka_poison"])
def test_verdicts(spark: Any, section: str) -> None:
    for case, row in through_spark(spark, section):
        assert (row.error in ("poison", "missing_urn")) == (case["expect"] != "ok"), case


@pytest.mark.spark
def test_poison_records(spark: Any) -> None:
    annotated = bq.dead_letter("body", lit("poison"), original_queue=lit("orders"))
    back = bq.strip_dead_letter(annotated)
    for case, row in through_spark(spark, "poison_dlq", annotated.alias("dead"), back.alias("back")):
        record = json.loads(row.dead)
        block = record.pop("dead_letter")
        assert (block["reason"], block["original_queue"]) == ("poison", "orders")
        expected = case["expect"]
        if expected["shape"] != "splice_or_wrapper":
            assert record == expected["record"], case
        if "raw" in record:
            assert bytes(row.back) == body_of(case), case


@pytest.mark.spark
def test_round_trips(spark: Any) -> None:
    encoded = bq.encode(bq.decode("body")).alias("again")
    for case, row in through_spark(spark, "roundtrip", encoded):
        again = json.loads(row.again)
        assert again["attempts"] == json.loads(row.body)["attempts"], case
        assert again["data"] == json.loads(row.body)["data"], case


def test_no_section_is_skipped_in_silence() -> None:
    sections = set(manifest()["sections"])
    assert sections == CODEC.keys() | ELSEWHERE.keys()
    assert all((Path(__file__).parents[2] / place).exists() for place in ELSEWHERE.values())


def test_the_page_in_the_docs_says_so() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table = {section.strip("`"): (cases, passed) for section, cases, passed, _ in rows}
    assert table.keys() == set(manifest()["sections"])
    assert {section: counts for section, counts in table.items() if section in CODEC} == {
        section: (str(count), str(count)) for section, count in CODEC.items()
    }
    assert all(int(passed) <= int(count) for count, passed in table.values())


def test_the_codec_passes_all_of_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    """Counted here, run one by one in test_conformance.py."""
    counted = {section: len(ids(section)) for section in CODEC}
    assert counted == CODEC
    assert sum(counted.values()) == 261
    with capsys.disabled():
        print(f"\nconformance: {sum(counted.values())} codec cases in {len(counted)} sections", end=" ")
