"""The Pulsar section of the BabelQueue conformance suite, through our binding's own functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pulsar as client
import pyarrow as pa
import pytest

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.pulsar import PulsarBinding
from babelqueue_spark.bindings.pulsar.messages import EntryId, Held, Unit, claimed, properties
from babelqueue_spark.envelope import decode
from babelqueue_spark.testing import outgoing, take
from tests.fixtures_conformance import Conformance
from tests.servers.pulsar import PulsarServer

pytestmark = pytest.mark.server


@pytest.fixture
def ours(pulsar_server: PulsarServer) -> Iterator[PulsarBinding]:
    with PulsarBinding(BindingConfig(url=pulsar_server.url)) as made:
        yield made


@pytest.fixture
def bare(pulsar_server: PulsarServer) -> Iterator[Any]:
    made = client.Client(pulsar_server.url, logger=client.ConsoleLogger(client.LoggerLevel.Error))
    yield made
    made.close()


def delivered(body: bytes, redeliveries: int) -> pa.RecordBatch:
    unit = Unit(EntryId("orders", -1, 1, 1), 0, redeliveries, [Held(-1, body, {}, None)])
    return claimed([unit], "somebody")


def test_every_block_is_run(conformance: Conformance) -> None:
    section = conformance.section("pulsar")
    blocks = {name for name, block in section.items() if isinstance(block, dict)}
    assert blocks == {"property_projection", "attempts_reconciliation", "schema_version_gate"}


def test_property_projection(conformance: Conformance, ours: PulsarBinding, bare: Any, queue: str) -> None:
    block = conformance.section("pulsar")["property_projection"]
    body = conformance.file(block["envelope_file"])
    assert list(properties(outgoing([body]))) == [block["properties"]]
    ours.publish(queue, outgoing([body]))
    reader = bare.subscribe(queue, "babelqueue", consumer_type=client.ConsumerType.Shared)
    message = reader.receive(timeout_millis=60_000)
    assert message.data() == body
    assert message.properties() == block["properties"]


def test_attempts_reconciliation(conformance: Conformance, ours: PulsarBinding) -> None:
    cases = conformance.section("pulsar")["attempts_reconciliation"]["cases"]
    assert len(cases) == 6
    envelope = json.loads(conformance.file("fixtures/order-created.json"))
    for case in cases:
        body = json.dumps({**envelope, "attempts": case["body_attempts"]}).encode()
        batch = delivered(body, case["redelivery_count"])
        attempts = decode(batch.column("body")).column("attempts")
        assert ours.attempts(attempts, batch).to_pylist() == [case["expected_attempts"]], case["name"]


def test_a_body_without_a_count_has_that_of_pulsar(ours: PulsarBinding) -> None:
    for redeliveries in (0, 2):
        assert ours.attempts(pa.nulls(1, pa.int32()), delivered(b"x", redeliveries)).to_pylist() == [
            redeliveries
        ]


def test_the_schema_version_gate_finds_the_property_as_it_stands(
    conformance: Conformance, ours: PulsarBinding, bare: Any, queue: str
) -> None:
    """The binding hands the property to its reader unchanged, and none where there is none."""
    block = conformance.section("pulsar")["schema_version_gate"]
    assert len(block["cases"]) == 18
    body = conformance.file(block["fixture"])
    producer = bare.create_producer(queue)
    expected = [{} if case.get("absent") else {block["property"]: case["value"]} for case in block["cases"]]
    ours.backlog(queue)
    for given in expected:
        producer.send(body, properties=given)
    found = take(ours, queue, len(expected)).column("headers").to_pylist()
    assert [dict(headers or ()) for headers in found] == expected
