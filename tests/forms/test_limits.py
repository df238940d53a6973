"""What a sender controls, in messages without an envelope: it shows nothing, loses nothing, and stops nothing."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pyarrow as pa
import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.artemis import amqp
from babelqueue_spark.bindings.artemis.messages import received
from babelqueue_spark.bindings.firehose.binding import LARGEST_RECORD, FirehoseBinding
from babelqueue_spark.bindings.headers import named_by_headers
from babelqueue_spark.bindings.rabbitmq.messages import message, properties
from babelqueue_spark.bindings.sql.pgmq import _is_json
from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.publishing import publish
from babelqueue_spark.connector.rows.dead_letters import dead_letter_blocks
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.connector.rows.size_limits import within_bounds
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.errors import BabelQueueError, MessageTooLargeError
from babelqueue_spark.forms import Carrier, form_of
from babelqueue_spark.jobs.tail import json_line
from babelqueue_spark.schemas.masking import Mask
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.testing.steps import outgoing
from babelqueue_spark.worker.outcomes import shortened
from tests.forms.test_plain import PLAIN, batch

NO_HEADERS = Carrier(headers=False, names=False)


def letters(bodies: list[bytes], carrier: Carrier, error: str = "") -> pa.RecordBatch:
    blocks = dead_letter_blocks(
        pa.repeat("failed", len(bodies)),
        original_queues=pa.repeat("orders", len(bodies)),
        attempts=pa.array([3] * len(bodies), pa.int32()),
        errors=pa.repeat(error, len(bodies)),
    )
    dead = PLAIN.dead_lettered(batch(*bodies), blocks, carrier)
    return outgoing(dead.bodies.to_pylist(), headers=[dict(each or ()) for each in dead.headers.to_pylist()])


@pytest.fixture
def catalog(tmp_path: Path) -> Registry:
    hidden = {"type": "string", "x-gdpr-sensitive": True}
    schema = {"type": "object", "properties": dict.fromkeys(("card", "trace_id", "meta"), hidden)}
    (tmp_path / "paid.json").write_text(json.dumps(schema))
    registry = {"schemas": [{"urn": "paid", "schema": "paid.json"}]}
    (tmp_path / "registry.json").write_text(json.dumps(registry))
    return Registry(str(tmp_path / "registry.json"))


def test_a_catalog_hides_what_has_the_names_of_an_envelope(catalog: Registry) -> None:
    body = b'{"card":"SECRET","trace_id":"SECRET","meta":"SECRET","more":1}'
    job, data = pa.array(["paid"]), pa.array([body.decode()])
    mask = Mask(catalog, native=True)
    read = {"job": job, "data": data, "error": pa.nulls(1, pa.string())}
    [shown] = mask.bodies(pa.array([body]), read).to_pylist()
    assert b"SECRET" not in shown
    assert json.loads(shown)["more"] == 1
    assert mask.bodies(pa.array([body])).to_pylist() == [b"***"]


def test_a_catalog_hides_the_error_of_a_dead_letter_in_its_header(catalog: Registry) -> None:
    options = write_options({"url": "amqp://127.0.0.1:1", "queue": "orders", "envelope": "none"})
    dead = letters([b'{"card":"SECRET"}'], Carrier(True, True), "card SECRET refused")
    found = batch(*dead.column("body").to_pylist(), headers=dead.column("headers").to_pylist())
    beside = {name: pa.nulls(1, kind) for name, kind in (("id", pa.string()), ("count", pa.int32()))}
    more = {"redelivered": pa.nulls(1, pa.bool_()), "enqueued_at": pa.nulls(1, pa.timestamp("us", "UTC"))}
    arrays = {
        **dict(zip(found.schema.names, found.columns, strict=True)),
        **beside,
        **more,
        "key": pa.nulls(1, pa.string()),
    }
    with options.binding() as binding:
        [row] = to_rows(pa.RecordBatch.from_pydict(arrays), "orders", binding, SCHEMA, options).to_pylist()
    line = json_line(Mask(catalog, native=True).row({**row, "job": "paid"}))
    assert "SECRET" not in line
    assert "failed" in line


@pytest.fixture
def firehose() -> Iterator[FirehoseBinding]:
    """A broker without headers that knows what is too large before it connects."""
    with FirehoseBinding(BindingConfig(url="firehose://eu-west-1", native=True)) as binding:
        yield binding


def test_a_body_that_is_too_large_loses_none_of_its_members(firehose: FirehoseBinding) -> None:
    body = json.dumps({"event": "moved", "dead_letter": {"report": "x" * LARGEST_RECORD}}).encode()
    with pytest.raises(MessageTooLargeError):
        publish(firehose, "orders", outgoing([body]))


def test_a_wrapped_dead_letter_that_is_too_large_keeps_its_reason(firehose: FirehoseBinding) -> None:
    bodies = [b'"%s"' % (b"x" * (LARGEST_RECORD - 500)), b"1"]
    dead = letters(bodies, NO_HEADERS, "e" * 600)
    cut = within_bounds(dead, pa.array(bodies), ["orders.dlq"] * 2, firehose, PLAIN)
    found = PLAIN.decode(cut).column("dead_letter").to_pylist()
    assert [(row["reason"], row["original_queue"]) for row in found] == [("failed", "orders")] * 2
    assert [row["error"] for row in found] == [None, "e" * 600]
    assert PLAIN.redriven(cut).bodies.to_pylist() == bodies


def test_a_wrapper_is_known_in_whatever_order_a_database_has_its_keys() -> None:
    [sorted_keys] = [b'{"attempts": 2, "babelqueue_raw": "[1]", "dead_letter": {"reason": "failed"}}']
    [row] = PLAIN.decode(batch(sorted_keys)).to_pylist()
    assert (row["data"], row["attempts"], row["dead_letter"]["reason"]) == ("[1]", 2, "failed")


def test_a_copy_has_the_attempts_of_its_column_and_no_block_without_one() -> None:
    options = write_options({"url": "kafka://127.0.0.1:1", "queue": "copies", "envelope": "none"})
    headers = [[("bq-attempts", "3"), ("x-dead-letter", '{"reason":"x"}'), ("k", "1"), ("k", "2")]]
    rows = {
        "data": pa.array(["1"]),
        "attempts": pa.array([0]),
        "headers": pa.array(headers, pa.map_(pa.string(), pa.string())),
    }
    with options.binding() as binding:
        [made] = to_messages(pa.RecordBatch.from_pydict(rows), 0, IdSource("t"), options, binding)[
            "copies"
        ].to_pylist()
        rows["attempts"] = pa.array([5])
        counted = to_messages(pa.RecordBatch.from_pydict(rows), 0, IdSource("t"), options, binding)["copies"]
    assert {name for name, _ in made["headers"]} == {"bq-message-id", "k"}
    assert dict(made["headers"])["k"] == "1"
    assert PLAIN.decode(counted).column("attempts").to_pylist() == [5]


def test_verdicts_do_not_depend_on_the_stack() -> None:
    body = b"[" * 890 + b"]" * 890

    def deep(frames: int) -> Any:
        return deep(frames - 1) if frames else PLAIN.decode(batch(body)).column("error").to_pylist()

    room = sys.getrecursionlimit() - 400
    assert deep(0) == deep(room // 2) == [None]
    assert not _is_json(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize("text", ["{", '{},"type":"evil"', "NaN", ""])
def test_an_event_has_data_that_is_json(text: str) -> None:
    options = write_options({"url": "redis://127.0.0.1:1", "queue": "q", "envelope": "cloudevents"})
    rows = pa.RecordBatch.from_pydict({"job": pa.array(["a"]), "data": pa.array([text])})
    with options.binding() as binding, pytest.raises(BabelQueueError, match="data is not one JSON value"):
        to_messages(rows, 0, IdSource("t"), options, binding)


def test_an_event_without_data_is_read_in_both_modes() -> None:
    events = form_of("cloudevents")
    named = [("ce_specversion", "1.0"), ("ce_type", "a"), ("ce_id", "1"), ("ce_source", "/")]
    bodies = batch(b"", b'{"specversion":"1.0","type":"a","id":"1","source":"/"}', headers=[named, None])
    assert events.decode(bodies).column("error").to_pylist() == [None, None]


def test_properties_win_over_headers_and_come_back_on_rabbitmq() -> None:
    given = pika.BasicProperties(
        type="paid", message_id="M1", headers={"bq-job": "refund", "bq-message-id": "M2", "x-attempts": 3}
    )
    _, body, headers, *_ = message(
        SimpleNamespace(delivery_tag=1, redelivered=False), given, b"1", native=True
    )
    read = batch(body, headers=[headers])
    [row] = PLAIN.decode(read).to_pylist()
    assert (row["job"], row["meta"]["id"]) == ("paid", "M1")
    assert len(dict(headers or ())) == len(headers or ())
    sent = outgoing([body], headers=[dict(headers or ())])
    [again] = properties(named_by_headers(sent), native=True)
    assert (again.type, again.message_id) == ("paid", "M1")
    assert again.headers["x-attempts"] == 0


def test_a_job_that_fits_no_property_stays_a_header() -> None:
    [made] = properties(named_by_headers(outgoing([b"1"], headers=[{"bq-job": "j" * 256}])), native=True)
    assert made.type is None
    assert made.headers["bq-job"] == "j" * 256


def test_properties_win_over_headers_on_artemis() -> None:
    raw = amqp.encoded(
        b"1", properties={"subject": amqp.text("paid")}, application={"bq-job": amqp.text("refund")}
    )
    [pairs] = received([(1, raw)], None, native=True).column("headers").to_pylist()
    assert pairs == [("bq-job", "paid")]


def test_the_type_of_an_outbox_is_kept_and_no_other_header_is_taken(tmp_path: Path) -> None:
    at = {"url": f"sqlite:///{tmp_path}/shop.db", "queue": "order", "sql.layout": "debezium"}
    options = write_options({**at, "envelope": "none"})
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute(
            "CREATE TABLE outbox (id TEXT, aggregatetype TEXT, aggregateid TEXT, type TEXT, payload TEXT)"
        )
    kind = pa.map_(pa.string(), pa.string())
    rows = {"data": pa.array(["1"]), "headers": pa.array([[("type", "OrderCreated")]], kind)}
    with options.binding() as binding:
        made = to_messages(pa.RecordBatch.from_pydict(rows), 0, IdSource("t"), options, binding)["order"]
        publish(binding, "order", made)
        [found] = binding.browse("order")
        assert found.column("headers").to_pylist() == [[("type", "OrderCreated")]]
        rows["headers"] = pa.array([[("tenant", "x")]], kind)
        with pytest.raises(BabelQueueError, match="keeps no headers"):
            to_messages(pa.RecordBatch.from_pydict(rows), 0, IdSource("t"), options, binding)


def test_the_error_of_a_dead_letter_has_no_character_that_sqs_refuses() -> None:
    assert shortened("bad name \uffff\ufffe") == r"bad name \uffff\ufffe"
