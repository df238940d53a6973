"""The Artemis section of the BabelQueue conformance suite, through our binding's own functions."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from proton import Message, symbol

from babelqueue_spark.bindings.artemis import ArtemisBinding
from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.envelope import decode
from babelqueue_spark.testing import outgoing, take
from tests.bindings.artemis_peers import receive, send
from tests.fixtures_conformance import Conformance
from tests.servers.artemis import ArtemisServer

pytestmark = pytest.mark.server


@pytest.fixture
def ours(artemis_server: ArtemisServer) -> Iterator[ArtemisBinding]:
    with ArtemisBinding(BindingConfig(url=artemis_server.url)) as made:
        yield made


def test_every_block_is_run(conformance: Conformance) -> None:
    section = conformance.section("artemis")
    blocks = {name for name, block in section.items() if isinstance(block, dict)}
    assert blocks == {"property_projection", "attempts_reconciliation", "schema_version_gate"}


def test_property_projection(
    conformance: Conformance, ours: ArtemisBinding, artemis_server: ArtemisServer, queue: str
) -> None:
    block = conformance.section("artemis")["property_projection"]
    body = conformance.file(block["envelope_file"])
    ours.publish(queue, outgoing([body]))
    message = receive(artemis_server, queue)
    assert message.body.encode() == body
    annotation = message.annotations[symbol(block["jms_type_annotation"])]
    assert (annotation, type(annotation)) == (block["jms_type"], symbol)
    assert message.correlation_id == block["correlation_id"]
    assert round(message.creation_time * 1000) == json.loads(body)["meta"]["created_at"]
    given = {name: value for name, value in message.properties.items() if name.startswith("bq_")}
    assert given == block["properties"]


def test_attempts_reconciliation(
    conformance: Conformance, ours: ArtemisBinding, artemis_server: ArtemisServer, queue: str
) -> None:
    """Of messages that bare clients send with the count in their header."""
    cases = conformance.section("artemis")["attempts_reconciliation"]["cases"]
    assert len(cases) == 6
    envelope = json.loads(conformance.file("fixtures/order-created.json"))
    bodies = [json.dumps({**envelope, "attempts": case["body_attempts"]}) for case in cases]
    send(
        artemis_server,
        queue,
        (
            Message(body, delivery_count=case["delivery_count"])
            for body, case in zip(bodies, cases, strict=True)
        ),
    )
    claimed = take(ours, queue, len(cases))
    attempts = ours.attempts(decode(claimed.column("body")).column("attempts"), claimed)
    assert attempts.to_pylist() == [case["expected_attempts"] for case in cases]


def test_a_body_without_a_count_has_that_of_artemis(ours: ArtemisBinding) -> None:
    batch = deliveries(2, body=[b"x", b"x"], count=[None, 3])
    assert ours.attempts(pa.nulls(2, pa.int32()), batch).to_pylist() == [0, 2]


def test_the_schema_version_gate_finds_the_property_as_it_stands(
    conformance: Conformance, ours: ArtemisBinding, artemis_server: ArtemisServer, queue: str
) -> None:
    """The binding hands the property to its reader unchanged, and none where there is none, or null."""
    block = conformance.section("artemis")["schema_version_gate"]
    assert len(block["cases"]) == 19
    body = conformance.file(block["fixture"]).decode()
    given = [{} if case.get("absent") else {block["property"]: case["value"]} for case in block["cases"]]
    send(artemis_server, queue, (Message(body, properties=each) for each in given))
    found = take(ours, queue, len(given)).column("headers").to_pylist()
    expected = [{name: value for name, value in each.items() if value is not None} for each in given]
    assert [dict(headers or ()) for headers in found] == expected
