"""What becomes of a message: the sections of the conformance suite that a runtime has to pass, live.

The section `idempotency` is in test_idempotency.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from babelqueue_spark.connector.options import read_options, write_options
from babelqueue_spark.envelope import strip_dead_letter, validate
from babelqueue_spark.testing import take
from babelqueue_spark.worker import Message, Policy, Worker
from babelqueue_spark.worker.rows import VERSION_HEADERS
from tests.bindings import artemis_peers, pulsar_peers, servicebus_peers, sqs_peers
from tests.brokers import SERVERS, url_of
from tests.envelope.conformance import manifest
from tests.streams import publish
from tests.worker.gates import gate_cases
from tests.worker.queues import taken, work_off

pytestmark = pytest.mark.spark

GATED = {
    "sqs": ("version_gate_sqs", sqs_peers.send_gated, "arn:aws:sqs:elasticmq:000000000000:nobody"),
    "pulsar": ("version_gate_pulsar", pulsar_peers.send_gated, "persistent://no/name/space"),
    "artemis": ("version_gate_artemis", artemis_peers.send_gated, "::"),
    "servicebus": ("version_gate_asb", servicebus_peers.send_gated, "orders/$DeadLetterQueue"),
}
"""Broker → the suite's section, how a bare client sends bodies with a property that gates, and where none can."""

JSON_WHITESPACE = b" \t\n\r"


def noted(spark: Any, url: str, queue: str, folder: Path, **options: Any) -> tuple[Worker, list[str]]:
    """Work a queue off; the worker, and the bodies that its handler got."""
    worker = Worker({"url": url}, state=str(folder / "worker"), **options)
    path = folder / "handled"
    path.touch()

    @worker.handler("*")
    def note(message: Message) -> None:
        with path.open("a") as file:
            file.write(json.dumps(message.body.decode()) + "\n")

    work_off(spark, worker, url, queue, folder)
    return worker, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("broker", ["sqlite", "redis", "rabbitmq"])
def test_identity_verdict(
    spark: Any, request: pytest.FixtureRequest, broker: str, queue: str, tmp_path: Path
) -> None:
    """The fate of all 97 bodies. Of those that have an identity, we refuse what lacks `meta`, as seed 002 does."""
    url = url_of(broker, request, tmp_path)
    cases = manifest()["identity_verdict"]["cases"]
    publish(url, queue, [case["body"].encode() for case in cases])
    worker, handled = noted(spark, url, queue, tmp_path)
    reasons = validate(pa.array([case["body"].encode() for case in cases])).to_pylist()
    accepted = [case["body"] for case, reason in zip(cases, reasons, strict=True) if reason is None]
    assert sorted(handled) == sorted(accepted)
    assert {case["expect"] for case in cases if case["body"] in accepted} == {"ok"}

    dead = taken(url, f"{queue}.dlq", len(cases) - len(accepted))
    blocks = [json.loads(body)["dead_letter"] for body in dead]
    assert {block["original_queue"] for block in blocks} == {queue}
    poison = [body for body, block in zip(dead, blocks, strict=True) if block["reason"] == "poison"]
    expected = [case["body"].encode() for case in cases if case["expect"] == "poison"]
    assert sorted(originals(poison)) == sorted(body.strip(JSON_WHITESPACE) for body in expected)
    others = {block["reason"] for block in blocks} - {"poison"}
    assert others == {"missing_meta"}
    assert worker.counts.read == len(cases)


def originals(records: list[bytes]) -> Iterator[bytes]:
    """The bodies within poison records, as far as a record keeps them: without blanks around."""
    for body in records:
        record = json.loads(body)
        if "raw" in record:
            [body] = strip_dead_letter(pa.array([body])).to_pylist()
        else:
            body = body[: body.rindex(b'"dead_letter":')].rstrip(b",") + b"}"
        yield body.strip(JSON_WHITESPACE)


@pytest.mark.parametrize(
    ("broker", "strategy"),
    [("sqs", None), ("sqs", "delete"), ("pulsar", None), ("artemis", None), ("servicebus", None)],
)
def test_version_gate(
    spark: Any,
    request: pytest.FixtureRequest,
    broker: str,
    strategy: str | None,
    queue: str,
    tmp_path: Path,
) -> None:
    """All three bodies of each case of a strategy; the other strategies are in test_rules.py.

    With `delete` the suite drops them; here they become dead letters all the same.
    Where a write fails nothing is settled, and the next run dead-letters them.
    """
    section, send, nowhere = GATED[broker]
    server = request.getfixturevalue(SERVERS[broker])
    url = server.url
    bodies = [body["body"].encode() for body in manifest()[section]["incoming_bodies"]]
    cases = {f"{queue}-{n}": case for n, case in enumerate(gate_cases(section, strategy))}
    for name, case in cases.items():
        send(server, name, bodies, case.get("bq_attempts"))
    options: dict[str, Any] = {"policy": Policy(unknown_urn=strategy)} if strategy else {}
    queues = ",".join(cases)
    if any(case["expect"]["outcome"] == "unsettled" for case in cases.values()):
        wrong = {"url": url, "deadLetterQueue": nowhere}
        bad = Worker(wrong, state=str(tmp_path / "worker"), **options)
        with pytest.raises(StreamingQueryException):
            work_off(spark, bad, url, queues, tmp_path)
    worker, handled = noted(spark, url, queues, tmp_path, **options)
    assert handled == []
    with write_options({"url": url}).binding() as binding:
        letters = [binding.dead_letter_name(name, "babelqueue") for name in cases]
    for letter in letters:
        assert_all_gated(url, letter, len(bodies))
        assert sorted(taken(url, letter, len(bodies))) == sorted(bodies)
    assert worker.counts.read == worker.counts.dead_lettered == len(bodies) * len(cases)


def assert_all_gated(url: str, queue: str, count: int) -> None:
    """The messages of a queue have a version beside them that is not ours; they stay."""
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        claimed = take(binding, queue, count)
        versions = [
            value
            for headers in claimed.column("headers").to_pylist()
            for name, value in headers
            if name in VERSION_HEADERS
        ]
        assert len(versions) == count
        assert "1" not in versions
        binding.release(queue, claimed)
