"""Dead letters on their way back, on live brokers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from babelqueue_spark.bindings import OUTGOING, binding_class
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import BrokerError, MessageTooLargeError, OptionError, QueuesFailedError
from babelqueue_spark.testing import eventually, in_processes
from babelqueue_spark.worker import redrive
from tests.brokers import url_of
from tests.servers.pulsar import PulsarServer
from tests.streams import backlog, outgoing, publish, short_claims
from tests.worker.queues import order, taken

pytestmark = pytest.mark.spark


@pytest.fixture(params=["sqlite", "redis", "rabbitmq"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def dead(body: bytes, queue: str, reason: str = "failed", failed_at: int = 1_749_132_730_000) -> bytes:
    """A body with the block of a dead letter."""
    block = {
        "reason": reason,
        "error": None,
        "exception": None,
        "failed_at": failed_at,
        "original_queue": queue,
        "attempts": 3,
        "lang": "php",
    }
    text = json.dumps(block, separators=(",", ":")).encode()
    return body.replace(b'"attempts":0}', b'"attempts":3,"dead_letter":' + text + b"}")


def test_back_to_where_they_came_from(spark: Any, url: str, queue: str) -> None:
    bodies = [order(queue, n=n, price=1.50) for n in range(3)]
    publish(
        url, f"{queue}.dlq", [*(dead(body, queue) for body in bodies), b'{"raw":"hello","dead_letter":{}}']
    )
    result = redrive(spark, {"url": url}, f"{queue}.dlq")
    assert [(move.to, move.reason) for move in result.moves] == [(queue, "failed")] * 3
    assert result.kept == {"not acceptable": 1}
    assert taken(url, queue, 3) == bodies
    assert taken(url, f"{queue}.dlq", 1) == [b'{"raw":"hello","dead_letter":{}}']


def test_a_letter_that_names_what_is_no_queue_stays(spark: Any, redis_server: Any, queue: str) -> None:
    """Its queue may be of the sender's choice, such as a key that Redis needs for itself."""
    url, letters = redis_server.url, f"{queue}.dlq"
    names = [queue, f"{queue}:delayed", "", f"{queue}:processing:claims"]
    bodies = [dead(order(name or letters), name) for name in names]
    publish(url, letters, bodies)
    result = redrive(spark, {"url": url}, letters)
    assert ([move.to for move in result.moves], result.kept) == ([queue], {"no queue": 3})
    assert sorted(taken(url, letters, 3)) == sorted(bodies[1:])
    with pytest.raises(OptionError, match="not the name of a queue"):
        redrive(spark, {"url": url}, letters, to=f"{queue}:delayed")


def test_a_dry_run_moves_nothing(spark: Any, url: str, queue: str) -> None:
    bodies = [dead(order(queue, n=n), queue) for n in range(3)]
    publish(url, f"{queue}.dlq", bodies)
    result = redrive(spark, {"url": url}, f"{queue}.dlq", dry_run=True, limit=2)
    assert len(result.moves) == 2
    assert backlog(url, queue) == 0
    assert taken(url, f"{queue}.dlq", 3) == bodies


def test_only_what_is_selected_and_the_rest_keeps_its_order(spark: Any, url: str, queue: str) -> None:
    bodies = [
        dead(order(queue, n=n, urn=f"urn:kind:{n % 2}"), queue, reason=("failed", "bad_order")[n % 3 == 0])
        for n in range(12)
    ]
    publish(url, f"{queue}.dlq", bodies)
    where = (
        "dead_letter.reason = 'failed' AND job = 'urn:kind:1' AND dead_letter.failed_at < current_timestamp()"
    )
    result = redrive(spark, {"url": url}, f"{queue}.dlq", where=where, to=f"{queue}-b", limit=3)
    assert [json.loads(body)["data"]["n"] for body in taken(url, f"{queue}-b", 3)] == [1, 5, 7]
    assert len(result.moves) == 3
    left = [body for n, body in enumerate(bodies) if n not in (1, 5, 7)]
    assert taken(url, f"{queue}.dlq", 9) == left


def test_a_part_of_a_batch_of_pulsar(spark: Any, pulsar_server: PulsarServer, queue: str) -> None:
    """The broker gives out again all of a batch of which a part was acknowledged."""
    bodies = [order(queue, n=n) for n in range(3)]
    letters = [dead(body, queue, reason=reason) for body, reason in zip(bodies, "aba", strict=True)]
    options = {"url": pulsar_server.url, "pulsar.batching": "true"}
    with read_options({**options, "queue": queue}).binding() as binding:
        binding.publish(f"{queue}.dlq", outgoing(letters))
    redrive(spark, options, f"{queue}.dlq", where="dead_letter.reason = 'b'")
    assert taken(pulsar_server.url, queue, 1) == [bodies[1]]
    assert sorted(taken(pulsar_server.url, f"{queue}.dlq", 2)) == sorted([letters[0], letters[2]])


def test_poison_is_unwrapped_when_that_is_asked_for(spark: Any, url: str, queue: str) -> None:
    block = f'"dead_letter":{{"reason":"poison","original_queue":"{queue}"}}'.encode()
    publish(
        url,
        f"{queue}.dlq",
        [b'{"raw":"hello",' + block + b"}", b'{"raw":"/w==","raw_encoding":"base64",' + block + b"}"],
    )
    assert redrive(spark, {"url": url}, f"{queue}.dlq").kept == {"not acceptable": 2}
    redrive(spark, {"url": url}, f"{queue}.dlq", poison=True)
    assert sorted(taken(url, queue, 2)) == [b"hello", b"\xff"]


def test_an_empty_payload_of_php_goes_back_where_the_option_says_so(spark: Any, url: str, queue: str) -> None:
    body = order(queue).replace(b'"data":{}', b'"data":[]')
    publish(url, f"{queue}.dlq", [dead(body, queue)])
    assert redrive(spark, {"url": url}, f"{queue}.dlq").kept == {"not acceptable": 1}
    options = {"url": url, "allowEmptyListData": "true"}
    [move] = redrive(spark, options, f"{queue}.dlq", where="error IS NULL").moves
    assert (move.to, move.reason) == (queue, "failed")
    assert taken(url, queue, 1) == [body]


def test_a_message_that_names_no_queue_stays(spark: Any, url: str, queue: str) -> None:
    publish(url, f"{queue}.dlq", [order(queue).replace(f'"queue":"{queue}"'.encode(), b'"queue":null')])
    assert redrive(spark, {"url": url}, f"{queue}.dlq").kept == {"no queue": 1}
    assert len(redrive(spark, {"url": url}, f"{queue}.dlq", to=queue).moves) == 1


def with_headers(bodies: Iterable[bytes], headers: dict[str, str]) -> pa.RecordBatch:
    rows = [{"body": body, "headers": list(headers.items())} for body in bodies]
    return pa.RecordBatch.from_pylist(rows, OUTGOING)


def test_bypass_is_a_header_beside_those_it_had(spark: Any, url: str, queue: str) -> None:
    if url.startswith("sqlite"):
        with pytest.raises(OptionError, match="keeps no headers"):
            redrive(spark, {"url": url}, f"{queue}.dlq", bypass=True)
        return
    with read_options({"url": url, "queue": queue}).binding() as binding:
        binding.publish(f"{queue}.dlq", with_headers([dead(order(queue), queue)], {"traceparent": "x"}))
        redrive(spark, {"url": url}, f"{queue}.dlq", bypass=True)
        [headers] = binding.claim(queue, 1, 1 << 20).column("headers").to_pylist()
    assert dict(headers)["bq-replay-bypass"] == "1"
    assert dict(headers)["traceparent"] == "x"


def test_a_target_that_takes_nothing_stops_only_what_is_for_it(
    spark: Any, rabbitmq_server: Any, queue: str
) -> None:
    url, dlq = rabbitmq_server.url, f"{queue}.dlq"
    bodies = [dead(order(queue, n=n), target) for n, target in enumerate([queue, "x" * 300, queue])]
    publish(url, dlq, bodies)
    for _ in range(2):
        with pytest.raises(BrokerError):
            redrive(spark, {"url": url}, dlq)
    assert [json.loads(body)["data"]["n"] for body in taken(url, queue, 2)] == [0, 2]
    assert taken(url, dlq, 1) == [bodies[1]]


@pytest.mark.parametrize("limit", [None, 2])
def test_a_queue_that_fails_keeps_its_letters_and_stops_no_others(
    spark: Any, redis_server: Any, queue: str, limit: int | None
) -> None:
    """The first letter names a key of another type; with a limit it takes nobody's place."""
    url, dlq, key = redis_server.url, f"{queue}.dlq", f"{queue}-text"
    with redis.Redis.from_url(url) as client:
        client.set(key, "no list")
    bodies = [dead(order(queue, n=n), target) for n, target in enumerate([key, queue, queue, key])]
    publish(url, dlq, bodies)
    with pytest.raises(QueuesFailedError) as caught:
        redrive(spark, {"url": url}, dlq, limit=limit)
    assert list(caught.value.failed) == [key]
    assert [json.loads(body)["data"]["n"] for body in taken(url, queue, 2)] == [1, 2]
    assert taken(url, dlq, 2) == [bodies[0], bodies[3]]


@pytest.mark.parametrize("to", [None, "elsewhere"])
def test_a_letter_that_is_too_large_stays_and_stops_no_others(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str | None
) -> None:
    url, dlq = f"sqlite:///{tmp_path}/queue.db", f"{queue}.dlq"
    bodies = [dead(order(queue, n=n), queue) for n in range(5)]
    publish(url, dlq, bodies)
    publish_now = SqlBinding.publish

    def small(self: Any, queue: str, messages: pa.RecordBatch, **given: Any) -> int:
        if any(b'"n":1' in body for body in messages.column("body").to_pylist()):
            raise MessageTooLargeError("it is too large")
        return publish_now(self, queue, messages, **given)

    monkeypatch.setattr(SqlBinding, "publish", small)
    with pytest.raises(QueuesFailedError) as caught:
        redrive(None, {"url": url}, dlq, to=to)  # type: ignore[arg-type]  # it asks Spark for conditions alone
    [[target, why]] = caught.value.failed.items()
    assert target == (to or queue)
    assert json.loads(bodies[1])["meta"]["id"] in why
    assert [json.loads(body)["data"]["n"] for body in taken(url, target, 4)] == [0, 2, 3, 4]
    assert taken(url, dlq, 1) == [bodies[1]]


def test_a_letter_of_sqs_names_no_queue_of_another_account(elasticmq_server: Any, queue: str) -> None:
    url, letters = elasticmq_server.url, f"{queue}-letters"
    foreign = f"arn:aws:sqs:eu-west-1:123456789012:{queue}"
    bodies = [dead(order(queue, n=n), target) for n, target in enumerate([foreign, queue])]
    publish(url, letters, bodies)
    result = redrive(None, {"url": url}, letters)  # type: ignore[arg-type]
    assert ([move.to for move in result.moves], result.kept) == ([queue], {"no queue": 1})
    assert taken(url, letters, 1) == [bodies[0]]


def test_a_crash_before_the_acknowledge_duplicates_and_ids_tell(spark: Any, url: str, queue: str) -> None:
    bodies = [order(queue, n=n) for n in range(3)]
    publish(url, f"{queue}.dlq", [dead(body, queue) for body in bodies])
    with pytest.raises(Exception, match="terminated abruptly"):
        in_processes(1, dies_before_the_acknowledge, url, queue)
    claims = short_claims(url)
    assert eventually(lambda: backlog(url, f"{queue}.dlq", **claims) == 3)
    redrive(spark, {"url": url, **claims}, f"{queue}.dlq")
    assert sorted(taken(url, queue, 6)) == sorted(bodies * 2)
    assert taken(url, f"{queue}.dlq", 0) == []


def dies_before_the_acknowledge(url: str, queue: str) -> None:
    options = {"url": url, **short_claims(url)}
    binding = binding_class(read_options({**options, "queue": queue}).broker)

    def acknowledge(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    binding.acknowledge = acknowledge  # type: ignore[attr-defined]
    redrive(None, options, f"{queue}.dlq")  # type: ignore[arg-type]  # it asks Spark for conditions alone


def test_a_queue_is_not_redriven_to_itself(spark: Any, url: str, queue: str) -> None:
    with pytest.raises(OptionError, match="to itself"):
        redrive(spark, {"url": url}, queue, to=queue)


def test_the_failed_table_of_initphp(spark: Any, queue: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    bodies = [order(queue, n=n) for n in range(4)]
    publish(url, f"failed/{queue}", [dead(body, queue) for body in bodies])
    redrive(spark, {"url": url}, f"failed/{queue}", where="data LIKE '%2%'")
    assert taken(url, queue, 1) == [bodies[2]]
    left = spark.read.format("babelqueue").options(url=url, queue=f"failed/{queue}").load()
    assert sorted(json.loads(row.data)["n"] for row in left.collect()) == [0, 1, 3]
