"""The Service Bus section of the BabelQueue conformance suite, and the published SDK beside us."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.servicebus import ServiceBusBinding
from babelqueue_spark.envelope import decode
from babelqueue_spark.testing import assert_empty, outgoing, take
from tests.bindings.servicebus_peers import binding, bodies, client, content, receive, receiver, sdk, sender
from tests.servers.servicebus import ServiceBusServer

pytestmark = pytest.mark.server


@pytest.fixture
def bare(servicebus_server: ServiceBusServer) -> Iterator[ServiceBusClient]:
    with client(servicebus_server) as made:
        yield made


@pytest.fixture
def bus(servicebus_server: ServiceBusServer) -> Iterator[ServiceBusBinding]:
    with binding(servicebus_server) as made:
        yield made


def test_every_block_is_run(conformance: Any) -> None:
    section = conformance.section("asb")
    blocks = {name for name, block in section.items() if isinstance(block, dict)}
    assert blocks == {"property_projection", "attempts_reconciliation", "schema_version_gate"}


def test_property_projection(
    conformance: Any, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
) -> None:
    block = conformance.section("asb")["property_projection"]
    body = conformance.file(block["envelope_file"])
    bus.publish(queue, outgoing([body]))
    with receiver(bare, queue) as opened:
        [found] = opened.receive_messages(1, 60)
    assert content(found) == body
    for name, expected in block["message"].items():
        assert getattr(found, name) == expected, name
    properties = {
        name.decode(): value.decode() if isinstance(value, bytes) else value
        for name, value in found.application_properties.items()
    }
    assert properties == block["application_properties"]


def test_attempts_reconciliation(conformance: Any, bus: ServiceBusBinding) -> None:
    """Its delivery count is 1 on the first delivery, like ours."""
    cases = conformance.section("asb")["attempts_reconciliation"]["cases"]
    assert len(cases) == 6
    envelope = json.loads(conformance.file("fixtures/order-created.json"))
    for case in cases:
        body = json.dumps({**envelope, "attempts": case["body_attempts"]}).encode()
        claimed = deliveries(1, body=[body], count=[case["delivery_count"]])
        attempts = decode(claimed.column("body")).column("attempts")
        assert bus.attempts(attempts, claimed).to_pylist() == [case["expected_attempts"]], case["name"]


def test_a_body_without_a_count_has_that_of_service_bus(bus: ServiceBusBinding) -> None:
    claimed = deliveries(2, body=[b"x", b"x"], count=[1, 3])
    assert bus.attempts(pa.nulls(2, pa.int32()), claimed).to_pylist() == [0, 2]


def test_the_schema_version_gate_finds_the_property_as_it_stands(
    conformance: Any, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
) -> None:
    """The binding hands the property to its reader as text, integers of either width alike, floats as floats."""
    block = conformance.section("asb")["schema_version_gate"]
    assert len(block["cases"]) == 24
    body = conformance.file(block["fixture"])
    sent: list[tuple[dict[str | bytes, Any] | None, str | None]] = []
    for case in block["cases"]:
        if case.get("absent"):
            sent.append((None, "absent"))
            continue
        value = case["value"]
        if case.get("value_type") == "float":
            sent += [
                ({block["property"]: {"TYPE": kind, "VALUE": 1.0}}, "1.0") for kind in ("FLOAT", "DOUBLE")
            ]
        elif isinstance(value, int):
            kinds = ("INT", "LONG")
            sent += [({block["property"]: {"TYPE": kind, "VALUE": value}}, str(value)) for kind in kinds]
        else:
            sent.append(({block["property"]: value}, value if value is None else str(value)))
    with sender(bare, queue) as opened:
        opened.send_messages([ServiceBusMessage(body, application_properties=each) for each, _ in sent])
    headers = take(bus, queue, len(sent)).column("headers").to_pylist()
    found = [dict(each or ()).get(block["property"], "absent") for each in headers]
    assert found == [expected for _, expected in sent]


class TestBesideTheSdk:
    @pytest.fixture
    def body(self, conformance: Any) -> bytes:
        found: bytes = conformance.file("fixtures/order-created.json")
        return found

    def test_the_sdk_reads_what_we_write(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str, body: bytes
    ) -> None:
        assert bus.publish(queue, outgoing([body], headers=[{"traceparent": "00-a-b-01"}])) == 1
        peer = sdk(bare)
        popped = peer.pop(queue, 5)
        assert popped is not None
        assert popped.body.encode() == body
        assert not popped.route_urn
        peer.ack(popped)
        assert_empty(bus, queue)
        peer.close()

    def test_we_read_what_the_sdk_writes(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str, body: bytes
    ) -> None:
        peer = sdk(bare)
        peer.publish(queue, body.decode())
        claimed = take(bus, queue, 1)
        assert bodies(claimed) == [body]
        assert dict(claimed.column("headers").to_pylist()[0])["bq-schema-version"] == "1"
        assert bus.acknowledge(queue, claimed).to_pylist() == [True]
        peer.close()

    def test_both_write_the_same_properties(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str, body: bytes
    ) -> None:
        peer = sdk(bare)
        bus.publish(queue, outgoing([body]))
        peer.publish(queue, body.decode())
        peer.close()
        with bare.get_queue_receiver(queue, prefetch_count=2, keep_alive=0) as opened:
            ours, theirs = receive(opened, 2)
        for name in ("subject", "correlation_id", "message_id", "content_type", "application_properties"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert content(ours) == content(theirs)

    def test_we_count_what_the_sdk_gave_back(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str, body: bytes
    ) -> None:
        """The SDK takes the client's count, 0 on the first delivery, for one from 1, and is one short."""
        bus.publish(queue, outgoing([body]))
        peer = sdk(bare)
        popped = peer.pop(queue, 5)
        assert popped is not None
        peer.abandon(popped)
        claimed = take(bus, queue, 1)
        attempts = decode(claimed.column("body")).column("attempts")
        assert bus.attempts(attempts, claimed).to_pylist() == [1]
        bus.release(queue, claimed)
        popped = peer.pop(queue, 5)
        assert popped is not None
        assert json.loads(popped.body)["attempts"] == 1
        peer.close()
