"""Whole sections of the conformance suite through a Spark DataFrame, and what the suite holds in all."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql.functions import lit, struct

from babelqueue_spark import functions as bq
from tests.envelope.bodies import compact
from tests.envelope.conformance import CODEC, cases, fixture, ids, manifest
from tests.envelope.test_conformance import assert_holds, assert_poison_record

Case = dict[str, Any]

MESSAGE = "job string, trace_id string, queue string, data string, meta struct<extra: map<string, string>>"
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
def test_the_fields_of_valid_bodies(spark: Any) -> None:
    for case, row in through_spark(spark, "cases"):
        if case["valid"]:
            shown = {
                "urn": row.job,
                "attempts": row.attempts,
                "lang": row.meta.lang,
                "schema_version": row.meta.schema_version,
            }
            assert shown.items() <= case["expect"].items(), case
            assert json.loads(row.data) == case["expect"].get("data", json.loads(row.data)), case


@pytest.mark.spark
@pytest.mark.parametrize("section", ["trim", "job_type"])
def test_identities(spark: Any, section: str) -> None:
    for case, row in through_spark(spark, section):
        if "valid" in case:
            assert (row.error not in ("poison", "missing_urn")) == case["valid"], case
            assert not case["valid"] or row.job == case["expect"]["urn"]
        elif "expect_accepts" in case:
            assert (row.error is None) == case["expect_accepts"], case
            assert (row.error not in ("poison", "missing_urn")) == case["expect_decode_ok"], case


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
        assert_poison_record(row.dead.decode(), case)
        if "raw" in json.loads(row.dead):
            assert bytes(row.back) == body_of(case), case


@pytest.mark.spark
def test_round_trips(spark: Any) -> None:
    encoded = bq.encode(bq.decode("body")).alias("again")
    for case, row in through_spark(spark, "roundtrip", encoded):
        original, again = json.loads(row.body), json.loads(row.again)
        for key in ("trace_id", "data", "meta", "attempts"):
            assert again[key] == original[key], case
        assert again["job"] == row.job


@pytest.mark.spark
def test_forbidden_keys_are_not_passed_on(spark: Any) -> None:
    encoded = bq.encode(bq.decode("body")).alias("again")
    for case, row in through_spark(spark, "forbidden_keys", encoded):
        assert_holds(json.loads(row.again), case)


@pytest.mark.spark
@pytest.mark.parametrize(("section", "count"), [("roundtrip", 9), ("trim", 3)])
def test_what_is_sent_on_keeps_what_it_has(spark: Any, section: str, count: int) -> None:
    """With one more attempt, to a dead letter queue: the door to a retry that the functions have."""
    attempts = bq.decode("body")["attempts"] + 1
    sent = bq.dead_letter("body", lit("failed"), original_queue=lit("orders"), attempts=attempts)
    rows = through_spark(spark, section, sent.alias("sent"))
    sent_on = [(case, row) for case, row in rows if "expect_attempts" in case]
    assert len(sent_on) == count
    for case, row in sent_on:
        document = json.loads(row.sent)
        assert document["attempts"] == case["expect_attempts"], case
        assert_holds(document, case)
        assert document["dead_letter"].items() >= case.get("expect_dead_letter", {}).items()


# --- what producers write ---------------------------------------------------------------------------------


def messages(spark: Any, given: list[Case]) -> Any:
    """A DataFrame with the `urn`, `queue`, `data` and `meta` of each case."""
    rows = [
        (
            case["urn"],
            case.get("trace_id"),
            case.get("queue", "orders"),
            compact(case.get("data", {})),
            ({key: compact(value) for key, value in extra_of(case).items()},),
        )
        for case in given
    ]
    return spark.createDataFrame(rows, MESSAGE).coalesce(1)


def extra_of(case: Case) -> dict[str, Any]:
    return {**case.get("meta", {}), **case.get("extras_meta", {})}


def made(section: str, *, rejected: bool) -> list[Case]:
    """The cases of a section that make a message, which is to be rejected, or not."""
    return [
        case
        for _, case in cases(section)
        if "urn" in case and (case.get("expect") == "reject") == rejected and "meta_entries" not in case
    ]


@pytest.mark.spark
@pytest.mark.parametrize(("section", "count"), [("data_shape", 1), ("extension_write", 5), ("trim", 13)])
def test_messages_are_written(spark: Any, section: str, count: int) -> None:
    given = made(section, rejected=False)
    assert len(given) == count
    written = messages(spark, given).select(bq.encode(struct("*")).alias("body"))
    retried = bq.dead_letter("body", lit("failed"), attempts=lit(1)).alias("retried")
    for case, row in zip(given, written.select("body", retried).collect(), strict=True):
        document, again = json.loads(row.body), json.loads(row.retried)
        assert compact(document["data"]) == case.get(
            "expect_encoded_data_json", compact(case.get("data", {}))
        )
        assert document.items() >= case.get("expect", {}).items(), case
        assert_holds(document, case, "expect_envelope")
        assert_holds(again, case, "expect_envelope")
        assert again["attempts"] == 1


@pytest.mark.spark
@pytest.mark.parametrize(
    ("section", "count"), [pytest.param("encode_reject", 10, marks=pytest.mark.slow), ("trim", 1)]
)
def test_messages_that_must_not_be_written_fail_the_query(spark: Any, section: str, count: int) -> None:
    given = [case for case in made(section, rejected=True) if "extras_top" not in case]
    assert len(given) == count
    for case in given:
        frame = messages(spark, [case]).select(bq.encode(struct("*")))
        with pytest.raises(PythonException, match=case.get("offending_key", "job").rpartition("/")[2]):
            frame.collect()


@pytest.mark.spark
def test_columns_that_an_envelope_does_not_have_are_not_written(spark: Any) -> None:
    given = [case for case in made("encode_reject", rejected=True) if "extras_top" in case]
    assert len(given) == 2
    for case in given:
        [(key, value)] = case["extras_top"].items()
        [row] = messages(spark, [case]).withColumn(key, lit(value)).select(bq.encode(struct("*"))).collect()
        assert key not in json.loads(row[0])


def test_no_section_is_skipped_in_silence() -> None:
    sections = set(manifest()["sections"])
    assert sections == CODEC.keys() | ELSEWHERE.keys()
    assert all((Path(__file__).parents[2] / place).exists() for place in ELSEWHERE.values())


def test_the_page_in_the_docs_says_so() -> None:
    found = re.findall(r"`(\w+)`\s(\d+)/(\d+)", PAGE.read_text())
    table = {section: (int(passed), int(count)) for section, passed, count in found}
    assert table.keys() == set(manifest()["sections"])
    assert {section: counts for section, counts in table.items() if section in CODEC} == {
        section: (count, count) for section, count in CODEC.items()
    }
    assert all(passed <= count for passed, count in table.values())


def test_the_codec_has_all_cases_of_its_sections() -> None:
    """They run one by one in test_conformance.py; the end of a test run says how many passed."""
    counted = {section: len(ids(section)) for section in CODEC}
    assert counted == CODEC
    assert sum(counted.values()) == 261
