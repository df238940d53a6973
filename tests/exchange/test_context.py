"""Context: what names the cause of a message, and the keys of `meta` that it takes over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from babelqueue.codec import EnvelopeCodec
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.errors import OptionError
from babelqueue_spark.exchange import Exchange, Stages, derives
from babelqueue_spark.worker import Message, Outgoing, Publishing, Worker
from tests.exchange.schedules import messages
from tests.streams import publish
from tests.worker.queues import taken, work_off

CREATED = "urn:babel:orders:created"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def with_context(queue: str) -> bytes:
    """A message whose meta has more than the contract's keys, as the published SDK writes it."""
    made = EnvelopeCodec.make(CREATED, {"n": 1}, queue=queue, meta={"tenant": "acme", "shard": 7})
    return str(EnvelopeCodec.encode(made)).encode().replace(b'"shard":7', b'"rate":1.50,"shard":7')


@pytest.mark.spark
def test_what_a_handler_returns_names_its_cause_and_takes_over_chosen_keys(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    publishing = Publishing(context=("tenant", "rate", "absent"))
    worker = Worker({"url": url}, state=str(tmp_path / "worker"), publishing=publishing)

    @worker.handler("urn:*")
    def handle(message: Message) -> Outgoing:
        return Outgoing(job="urn:babel:orders:charged", data={}, queue="charged")

    cause = with_context(queue)
    publish(url, queue, [cause])
    work_off(spark, worker, url, queue, tmp_path)
    [body] = taken(url, "charged", 1)
    original, derived = json.loads(cause), json.loads(body)
    assert derived["trace_id"] == original["trace_id"]
    assert derived["meta"]["causation_id"] == original["meta"]["id"] != derived["meta"]["id"]
    assert derived["meta"]["tenant"] == "acme"
    assert b'"rate":1.50' in body
    assert "shard" not in derived["meta"]
    assert EnvelopeCodec.accepts(EnvelopeCodec.decode(body.decode()))


@pytest.mark.spark
def test_a_stage_derives_messages_from_those_that_were_read(spark: Any, url: str, queue: str) -> None:
    cause = with_context(queue)
    publish(url, queue, [cause])
    read = spark.read.format("babelqueue").options(url=url, queue=queue).load()
    exchange = Exchange(
        {"url": url}, {"urn:*": "one", "urn:babel:*": "two"}, Stages(bind={"*": derives("tenant", "rate")})
    )
    mail = read.withColumns({"job": F.lit("urn:babel:mail:sent"), "attempts": F.lit(3)})
    exchange.write(exchange.publish(mail), ("shop", 1))
    [one], [two] = messages(url, "one"), messages(url, "two")
    original = json.loads(cause)
    for derived, name in ((one, "one"), (two, "two")):
        assert derived["trace_id"] == original["trace_id"]
        assert derived["meta"]["causation_id"] == original["meta"]["id"] != derived["meta"]["id"]
        assert (derived["meta"]["tenant"], derived["meta"]["queue"]) == ("acme", name)
        assert "shard" not in derived["meta"]
        assert derived["attempts"] == 0
    assert one["meta"]["id"] == two["meta"]["id"]


@pytest.mark.spark
def test_a_cause_without_an_id_or_with_an_odd_one(spark: Any) -> None:
    rows = [('a"b\\c\u00fc', {"tenant": '"x"'}), (None, None), ("", {})]
    frame = spark.createDataFrame(
        [({"id": name, "extra": extra},) for name, extra in rows],
        "meta STRUCT<id STRING, extra MAP<STRING, STRING>>",
    )
    for keys, first in (((), {}), (("tenant",), {"tenant": '"x"'})):
        found = [row.meta.extra for row in derives(*keys)(frame).collect()]
        assert json.loads(found[0].pop("causation_id")) == rows[0][0]
        assert found == [first, {}, {}]


def test_keys_that_cannot_be_taken_over() -> None:
    for key in ("id", "source", "causation_id", "reply_to"):
        with pytest.raises(OptionError, match=f"context has '{key}'"):
            derives(key)
        with pytest.raises(OptionError, match=f"context has '{key}'"):
            Publishing(context=(key,))
    with pytest.raises(OptionError, match="takes several keys"):
        Publishing(context="tenant")


@pytest.mark.spark
def test_derives_needs_a_cause(spark: Any) -> None:
    with pytest.raises(OptionError, match="needs the column 'meta'"):
        derives()(spark.createDataFrame([("urn:x",)], "job STRING"))
