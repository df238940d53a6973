"""The SQS sections of the BabelQueue conformance suite, through our binding's own functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.bindings.sqs import SqsBinding
from babelqueue_spark.bindings.sqs.messages import Target, entries, received
from babelqueue_spark.envelope import decode
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing import outgoing, take
from tests.bindings.sqs_peers import binding, bodies, claim, client, sdk
from tests.servers.elasticmq import ElasticMqServer

pytestmark = pytest.mark.server


def target(*, fifo: bool = False) -> Target:
    return Target(queue="orders", fifo=fifo, group="orders", content_dedup=False, max_bytes=1 << 20)


def message(body: bytes, attributes: dict[str, str], **values: str) -> dict[str, Any]:
    """A message as a receive returns it."""
    return {
        "MessageId": "1",
        "ReceiptHandle": "r",
        "Body": body.decode(),
        "Attributes": attributes,
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value} for name, value in values.items()
        },
    }


@pytest.fixture
def bare(elasticmq_server: ElasticMqServer) -> Iterator[Any]:
    made = client(elasticmq_server)
    yield made
    made.close()


@pytest.fixture
def sqs(elasticmq_server: ElasticMqServer) -> Iterator[SqsBinding]:
    with binding(elasticmq_server) as made:
        yield made


def test_every_block_is_run(conformance: Any) -> None:
    section = conformance.section("sqs")
    blocks = {name for name, block in section.items() if isinstance(block, dict)}
    assert blocks == {"attribute_projection", "attempts_reconciliation", "schema_version_gate"}
    assert len(conformance.section("delay")["cases"]) == 6
    assert len(conformance.section("delay")["release_visibility"]["cases"]) == 3


def test_attribute_projection(conformance: Any, sqs: SqsBinding, bare: Any, queue: str) -> None:
    block = conformance.section("sqs")["attribute_projection"]
    body = conformance.file(block["envelope_file"])
    [entry] = entries(outgoing([body]), target())
    assert entry.request["MessageAttributes"] == block["message_attributes"]
    sqs.publish(queue, outgoing([body]))
    url = bare.get_queue_url(QueueName=queue)["QueueUrl"]
    [found] = bare.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert found["Body"].encode() == body
    assert found["MessageAttributes"] == block["message_attributes"]


def test_attempts_reconciliation(conformance: Any, sqs: SqsBinding) -> None:
    cases = conformance.section("sqs")["attempts_reconciliation"]["cases"]
    assert len(cases) == 6
    envelope = json.loads(conformance.file("fixtures/order-created.json"))
    for case in cases:
        body = json.dumps({**envelope, "attempts": case["body_attempts"]}).encode()
        count = case["approximate_receive_count"]
        claimed = received([message(body, {"ApproximateReceiveCount": count} if count else {})], [0.0])
        attempts = decode(claimed.column("body")).column("attempts")
        assert sqs.attempts(attempts, claimed).to_pylist() == [case["expected_attempts"]], case["name"]


def test_a_body_without_a_count_has_that_of_sqs(sqs: SqsBinding) -> None:
    claimed = received(
        [message(b"x", {"ApproximateReceiveCount": count}) for count in ("1", "3")], [0.0, 0.0]
    )
    assert sqs.attempts(pa.nulls(2, pa.int32()), claimed).to_pylist() == [0, 2]


def test_the_schema_version_gate_finds_the_attribute_as_it_stands(conformance: Any) -> None:
    """The binding hands the property to its reader unchanged, and none where there is none."""
    block = conformance.section("sqs")["schema_version_gate"]
    assert len(block["cases"]) == 18
    body = conformance.file(block["fixture"])
    for case in block["cases"]:
        values = {} if case.get("absent") else {block["property"]: case["value"]}
        headers = received([message(body, {}, **values)], [0.0]).column("headers").to_pylist()[0]
        assert dict(headers or ()) == values


def test_delay(conformance: Any, sqs: SqsBinding, queue: str) -> None:
    for case in conformance.section("delay")["cases"]:
        fifo = case["queue_type"] == "fifo"
        delayed = outgoing([b"later"], delays=[case["delay_seconds"] * 1000])
        if case["expect"] == "reject":
            with pytest.raises(BrokerError, match="asks for a delay"):
                sqs.publish(f"{queue}.fifo" if fifo else queue, delayed)
        else:
            [entry] = entries(delayed, target(fifo=fifo))
            assert entry.request["DelaySeconds"] == case["expect"]["delay_seconds_attribute"], case["name"]


def test_release_visibility(
    conformance: Any, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release is `release-now`; a retry with a back-off is a delayed publish by the worker."""
    case = conformance.section("delay")["release_visibility"]["cases"][0]
    assert case["delay_seconds"] == 0
    sqs.publish(queue, outgoing([b"a"]))
    claimed = take(sqs, queue, 1)
    sent: list[dict[str, Any]] = []
    call = sqs._sqs.call

    def recorded(operation: str, **parameters: Any) -> dict[str, Any]:
        sent.extend(parameters["Entries"])
        return call(operation, **parameters)

    monkeypatch.setattr(sqs._sqs, "call", recorded)
    sqs.release(queue, claimed)
    assert [entry["VisibilityTimeout"] for entry in sent] == [case["expect"]["visibility_timeout"]]


class TestBesideTheSdk:
    @pytest.fixture
    def body(self, conformance: Any) -> bytes:
        found: bytes = conformance.file("fixtures/order-created.json")
        return found

    @pytest.mark.parametrize("suffix", ["", ".fifo"])
    def test_the_sdk_reads_what_we_write(
        self, sqs: SqsBinding, bare: Any, queue: str, body: bytes, suffix: str
    ) -> None:
        name = queue + suffix
        headers = {"traceparent": "00-a-b-01"}
        assert sqs.publish(name, outgoing([body], headers=[headers])) == 1
        peer = sdk(bare, fifo=bool(suffix))
        popped = peer.pop(name, 1)
        assert popped is not None
        assert popped.body.encode() == body
        assert popped.headers.items() >= headers.items()
        assert popped.headers["bq-job"] == "urn:babel:orders:created"
        peer.ack(popped)
        assert peer.pop(name, 0) is None

    @pytest.mark.parametrize("suffix", ["", ".fifo"])
    def test_we_read_what_the_sdk_writes(
        self, sqs: SqsBinding, bare: Any, queue: str, body: bytes, suffix: str
    ) -> None:
        name = queue + suffix
        sqs.backlog(name)
        sdk(bare, fifo=bool(suffix)).publish_with_headers(name, body.decode(), {"traceparent": "00-a-b-01"})
        claimed = take(sqs, name, 1)
        assert bodies(claimed) == [body]
        assert dict(claimed.column("headers").to_pylist()[0])["traceparent"] == "00-a-b-01"
        assert claimed.column("key").to_pylist() == [name if suffix else None]
        assert sqs.acknowledge(name, claimed).to_pylist() == [True]

    def test_both_write_the_same_attributes_and_ids(
        self, sqs: SqsBinding, bare: Any, queue: str, body: bytes
    ) -> None:
        name = f"{queue}.fifo"
        seen = []
        for write in (
            lambda: sqs.publish(name, outgoing([body])),
            lambda: sdk(bare, fifo=True).publish(name, body.decode()),
        ):
            sqs.backlog(name)
            write()
            url = bare.get_queue_url(QueueName=name)["QueueUrl"]
            [found] = bare.receive_message(
                QueueUrl=url, MessageAttributeNames=["All"], AttributeNames=["All"]
            )["Messages"]
            ids = (found["Attributes"][key] for key in ("MessageGroupId", "MessageDeduplicationId"))
            seen.append((found["Body"], found["MessageAttributes"], *ids))
            bare.delete_queue(QueueUrl=url)
            sqs.close()
        assert seen[0] == seen[1]

    def test_each_sees_the_attempts_of_the_other(
        self, sqs: SqsBinding, bare: Any, queue: str, body: bytes
    ) -> None:
        sqs.publish(queue, outgoing([body]))
        sqs.release(queue, take(sqs, queue, 1))
        peer = sdk(bare)
        popped = peer.pop(queue, 1)
        assert json.loads(popped.body)["attempts"] == 1
        peer.redeliver(popped, popped.body, 0)
        claimed = claim(sqs, queue)
        attempts = decode(claimed.column("body")).column("attempts")
        assert attempts.to_pylist() == [0]
        assert sqs.attempts(attempts, claimed).to_pylist() == [2]

    @pytest.mark.parametrize("name", ["orders", "orders.fifo"])
    def test_dead_letters_go_where_the_sdk_sends_them(self, bare: Any, name: str) -> None:
        assert SqsBinding.dead_letter_name(name, "babelqueue") == sdk(bare).dead_letter_queue_name(name)
