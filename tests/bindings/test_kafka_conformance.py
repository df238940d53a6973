"""The Kafka sections of the BabelQueue conformance suite, through our binding's own functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.kafka import KafkaBinding
from babelqueue_spark.bindings.kafka.messages import records
from babelqueue_spark.bindings.kafka.tiers import DEFAULT_RETRY_TIERS_MS, Tiers
from babelqueue_spark.envelope import decode, set_attempts
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing import outgoing
from tests.bindings import kafka_peers as peers
from tests.envelope.conformance import manifest
from tests.fixtures_conformance import Conformance
from tests.servers.kafka import KafkaServer

pytestmark = pytest.mark.server

BACKOFF = {"cases": 7, "retry_republish": 5, "topic_names": 5, "retry_attempt_tier": 11, "default_tiers": 1}


def cases_of(block: str) -> list[dict[str, Any]]:
    """The cases of a block of the section about retry tiers."""
    found = manifest()["backoff"][block]
    return list(found if isinstance(found, list) else found["cases"])


def named(block: str) -> Any:
    return pytest.mark.parametrize("case", cases_of(block), ids=[case["name"] for case in cases_of(block)])


@pytest.fixture
def ours(kafka_server: KafkaServer) -> Iterator[KafkaBinding]:
    with KafkaBinding(BindingConfig(url=kafka_server.url)) as made:
        yield made


def tiered(server: KafkaServer, delays: list[int]) -> KafkaBinding:
    options = {"retry_tiers_ms": ",".join(map(str, delays))} if delays else {}
    return KafkaBinding(BindingConfig(url=server.url, client_options=options))


def test_every_block_is_run(conformance: Conformance) -> None:
    blocks = {name for name, block in conformance.section("kafka").items() if isinstance(block, dict)}
    assert blocks == {"property_projection", "attempts_reconciliation", "schema_version_gate"}
    backoff = conformance.section("backoff")
    sizes = {name: len(cases_of(name)) for name in backoff.keys() - {"description"}}
    assert sizes == BACKOFF


def test_property_projection(
    conformance: Conformance, ours: KafkaBinding, kafka_server: KafkaServer, queue: str
) -> None:
    block = conformance.section("kafka")["property_projection"]
    body = conformance.file(block["envelope_file"])
    ours.publish(queue, outgoing([body]))
    [record] = peers.records(kafka_server, queue, 1)
    assert record.value() == body
    assert peers.headers_of(record) == block["headers"]
    assert record.timestamp()[1] == json.loads(body)["meta"]["created_at"]


def test_attempts_reconciliation(conformance: Conformance, ours: KafkaBinding) -> None:
    found = conformance.section("kafka")["attempts_reconciliation"]["cases"]
    assert len(found) == 5
    envelope = json.loads(conformance.file("fixtures/order-created.json"))
    for case in found:
        body = json.dumps({**envelope, "attempts": case["body_attempts"]}).encode()
        named = case["header_attempts"]
        headers = None if named is None else [("bq-attempts", str(named))]
        batch = deliveries(1, body=[body], headers=[headers])
        attempts = decode(batch.column("body")).column("attempts")
        assert ours.attempts(attempts, batch).to_pylist() == [case["expected_attempts"]], case["name"]


def test_the_schema_version_gate_finds_the_header_as_it_stands(
    conformance: Conformance, ours: KafkaBinding, kafka_server: KafkaServer, queue: str
) -> None:
    """The binding hands the header to its reader unchanged, null where it is, and none where there is none."""
    block = conformance.section("kafka")["schema_version_gate"]
    assert len(block["cases"]) == 19
    body = conformance.file(block["fixture"])
    expected = [{} if case.get("absent") else {block["property"]: case["value"]} for case in block["cases"]]
    for given in expected:
        peers.send(kafka_server, queue, [body], headers=given.items())
    found = [headers for batch in ours.browse(queue) for headers in batch.column("headers").to_pylist()]
    assert [dict(headers or ()) for headers in found] == expected


@named("cases")
def test_a_requested_delay(case: dict[str, Any], kafka_server: KafkaServer, queue: str) -> None:
    with tiered(kafka_server, case["retry_tiers_ms"]) as ours:
        wanted, message = case["expect"], outgoing([b"{}"], delays=[case["delay_ms"]])
        if wanted == "reject":
            with pytest.raises(BrokerError, match=r"set kafka\.retry_tiers_ms"):
                ours.publish(queue, message)
            return
        [record] = records(case["work_topic"], message, Tiers(tuple(case["retry_tiers_ms"])))
        number = case["retry_tiers_ms"].index(wanted["tier_ms"]) + 1
        assert record.topic == f"{case['work_topic']}.retry.{number}"
        assert wanted["headers"].items() <= dict(record.headers).items()


@pytest.mark.parametrize("case", [*cases_of("retry_republish"), *cases_of("retry_attempt_tier")])
def test_a_retry(case: dict[str, Any], conformance: Conformance, kafka_server: KafkaServer) -> None:
    """As the worker makes it: attempts raised in the body, and the delay that the binding gives a retry."""
    body, topic, wanted = conformance.file("fixtures/order-created.json"), case["work_topic"], case["expect"]
    attempts = case["attempts_before"] if "attempts_before" in case else case["attempts"]
    with tiered(kafka_server, case["retry_tiers_ms"]) as ours:
        if wanted == "reject":
            with pytest.raises(BrokerError, match=r"set kafka\.retry_tiers_ms"):
                ours.retry_delay(topic, 0, attempts)
            return
        delay = ours.retry_delay(topic, 0, attempts)
    again = set_attempts(pa.array([body]), pa.array([attempts + 1], pa.int32())).to_pylist()
    message = outgoing(again, delays=[delay], keys=[case.get("key")])
    [record] = records(topic, message, Tiers(tuple(case["retry_tiers_ms"])))
    assert (record.topic, record.key) == (wanted["topic"], case.get("key"))
    assert wanted["headers"].items() <= dict(record.headers).items()
    assert json.loads(record.body)["attempts"] == wanted["body_attempts"]


@named("topic_names")
def test_the_name_of_a_tier(case: dict[str, Any]) -> None:
    tiers = Tiers(tuple(range(1, case["n"] + 1)))
    assert tiers.topic(case["work_topic"], case["n"]) == case["expect_topic"]
    assert tiers.work_topic(case["expect_topic"]) == case["work_topic"]


@named("default_tiers")
def test_the_recommended_tiers(case: dict[str, Any]) -> None:
    assert case["expect"] == list(DEFAULT_RETRY_TIERS_MS)
