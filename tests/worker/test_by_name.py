"""Dead letters that are chosen one by one, on live brokers and without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.bindings.redis.binding import RedisBinding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.worker.dead_letters.by_name import drop_chosen, names_of, redrive_chosen
from tests.brokers import url_of
from tests.streams import publish
from tests.worker.queues import order, taken
from tests.worker.test_redrive import dead


@pytest.fixture(params=["sqlite", "redis", "rabbitmq"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def names(url: str, queue: str) -> list[str]:
    """The names of all messages, in the queue's order."""
    with read_options({"url": url, "queue": queue}).binding() as binding:
        return [name for batch in binding.browse(queue) for name in names_of(batch)]


def test_the_chosen_go_back_and_the_others_keep_their_order(url: str, queue: str) -> None:
    bodies = [order(queue, n=n) for n in range(5)]
    letters = [dead(body, queue) for body in bodies]
    publish(url, f"{queue}.dlq", letters)
    chosen = names(url, f"{queue}.dlq")
    result = redrive_chosen({"url": url}, f"{queue}.dlq", [chosen[1], chosen[3]])
    assert [(move.to, move.reason) for move in result.moves] == [(queue, "failed")] * 2
    assert not result.kept
    assert taken(url, queue, 2) == [bodies[1], bodies[3]]
    assert taken(url, f"{queue}.dlq", 3) == [letters[0], letters[2], letters[4]]


def test_a_chosen_message_that_no_reader_accepts_stays(url: str, queue: str) -> None:
    letters = [b'{"raw":"hello","dead_letter":{}}', dead(order(queue), queue)]
    publish(url, f"{queue}.dlq", letters)
    result = redrive_chosen({"url": url}, f"{queue}.dlq", names(url, f"{queue}.dlq"))
    assert (len(result.moves), result.kept) == (1, {"not acceptable": 1})
    assert taken(url, f"{queue}.dlq", 1) == letters[:1]


def test_the_chosen_are_dropped_and_the_others_stay(url: str, queue: str) -> None:
    letters = [dead(order(queue, n=n), queue) for n in range(5)]
    publish(url, f"{queue}.dlq", letters)
    chosen = names(url, f"{queue}.dlq")
    assert drop_chosen({"url": url}, f"{queue}.dlq", [chosen[0], chosen[2], "no such message"]) == 2
    assert taken(url, f"{queue}.dlq", 3) == [letters[1], letters[3], letters[4]]


def test_what_has_gone_meanwhile_moves_nothing_else(url: str, queue: str) -> None:
    letters = [dead(order(queue, n=n), queue) for n in range(3)]
    publish(url, f"{queue}.dlq", letters)
    [first, *_] = names(url, f"{queue}.dlq")
    assert drop_chosen({"url": url}, f"{queue}.dlq", [first]) == 1
    assert drop_chosen({"url": url}, f"{queue}.dlq", [first]) == 0
    assert redrive_chosen({"url": url}, f"{queue}.dlq", [first]).moves == []
    assert taken(url, f"{queue}.dlq", 2) == letters[1:]


def test_a_message_that_has_gone_claims_nothing(
    redis_server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(redis_server.url, f"{queue}.dlq", [dead(order(queue), queue)])
    [gone] = names(redis_server.url, f"{queue}.dlq")
    drop_chosen({"url": redis_server.url}, f"{queue}.dlq", [gone])
    publish(redis_server.url, f"{queue}.dlq", [dead(order(queue, n=1), queue)])
    monkeypatch.setattr(RedisBinding, "claim", lambda *_: pytest.fail("a message was claimed"))
    assert drop_chosen({"url": redis_server.url}, f"{queue}.dlq", [gone]) == 0
    assert redrive_chosen({"url": redis_server.url}, f"{queue}.dlq", [gone]).moves == []


def test_behind_the_last_that_is_there_nothing_is_claimed(
    redis_server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = RedisBinding.capabilities.claim_batch
    publish(redis_server.url, f"{queue}.dlq", [dead(order(queue, n=n), queue) for n in range(most + 1)])
    [first, *_] = names(redis_server.url, f"{queue}.dlq")
    claimed = []
    claim = RedisBinding.claim
    monkeypatch.setattr(RedisBinding, "claim", lambda *given: claimed.append(given) or claim(*given))
    assert drop_chosen({"url": redis_server.url}, f"{queue}.dlq", [first, "gone"]) == 1
    assert len(claimed) == 1


def test_of_equal_messages_as_many_as_were_chosen(redis_server, queue: str) -> None:
    letter = dead(order(queue), queue)
    publish(redis_server.url, f"{queue}.dlq", [letter] * 3)
    chosen = names(redis_server.url, f"{queue}.dlq")
    assert len(set(chosen)) == 1
    assert drop_chosen({"url": redis_server.url}, f"{queue}.dlq", chosen[:2]) == 2
    assert taken(redis_server.url, f"{queue}.dlq", 1) == [letter]


def test_a_message_with_headers_is_found_again(url: str, queue: str) -> None:
    row = {"body": dead(order(queue), queue), "headers": [("x-tenant", "seven")]}
    if url.startswith("sqlite"):
        row.pop("headers")
    with read_options({"url": url, "queue": queue}).binding() as binding:
        binding.publish(f"{queue}.dlq", pa.RecordBatch.from_pylist([row], OUTGOING))
    [name] = names(url, f"{queue}.dlq")
    assert len(redrive_chosen({"url": url}, f"{queue}.dlq", [name], to=f"{queue}-b").moves) == 1
    [body] = taken(url, f"{queue}-b", 1)
    assert "dead_letter" not in json.loads(body)
