"""Bodies without an envelope: what is read, what is written, and what a hostile sender may send."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.bindings.headers import named_by_headers
from babelqueue_spark.connector.options import read_options, write_options
from babelqueue_spark.connector.rows.dead_letters import dead_letter_blocks
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.connector.sink.writer import check_columns
from babelqueue_spark.errors import BabelQueueError, OptionError
from babelqueue_spark.forms import Carrier, Form, JobSource, form_of
from tests.examples import examples

PLAIN = form_of("none")
CARRIERS = [Carrier(headers=True, names=True), Carrier(headers=True, names=False), Carrier(False, False)]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def batch(*bodies: bytes, headers: list[Any] | None = None) -> pa.RecordBatch:
    pairs = pa.array(headers or [None] * len(bodies), pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary()), pairs], ["body", "headers"])


def decoded(*bodies: bytes, form: Form = PLAIN, **given: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = form.decode(batch(*bodies, **given)).to_pylist()
    return rows


@examples(500)
@given(VALUES, st.sampled_from(["", " ", "\n\t"]))
def test_data_is_the_text_of_any_json(value: Any, space: str) -> None:
    text = space + json.dumps(value, ensure_ascii=False) + space
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return
    [row] = decoded(body)
    assert (row["data"], row["error"], row["attempts"]) == (text, None, 0)
    assert PLAIN.content(body, {})[0] == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"order 7",
        b"{'a': 1}",
        b'{"a": 1} x',
        b"NaN",
        b'{"a": Infinity}',
        b"1e999",
        b'{"a": 1e999}',
        b"\xff\xfe",
        b'"\xff"',
        b"[" * 2_000 + b"]" * 2_000,
        b"\x80\x04\x95",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_has_an_error_and_keeps_others_sound(body: bytes) -> None:
    first, row, last = decoded(b'{"a":1}', body, b"[2]")
    assert (row["data"], row["error"]) == (None, "invalid_data")
    assert (first["data"], last["data"]) == ('{"a":1}', "[2]")


def test_typed_data_takes_any_value() -> None:
    rows = PLAIN.decode(batch(b'{"id": 7}', b"[1]"), data_type=pa.struct([("id", pa.int64())]))
    assert rows.column("data").to_pylist() == [{"id": 7}, None]
    lists = PLAIN.decode(batch(b"[1, 2]"), data_type=pa.list_(pa.int64()))
    assert lists.column("data").to_pylist() == [[1, 2]]


@pytest.mark.parametrize(
    ("source", "jobs"),
    [
        ("header:type", ["paid", None]),
        ("field:event", ["shipped", None]),
        ("field:number", ["7", None]),
        ("orders", ["orders", "orders"]),
    ],
)
def test_a_job_comes_from_a_header_a_member_or_is_the_same_for_all(source: str, jobs: list[str]) -> None:
    form = form_of("none", JobSource.of(source))
    rows = decoded(
        b'{"event": "shipped", "number": 7}', b"[1]", form=form, headers=[[("type", "paid")], None]
    )
    assert [row["job"] for row in rows] == jobs


@pytest.mark.parametrize("text", ["", "header:", "field:"])
def test_a_job_that_comes_from_nowhere_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="header:NAME"):
        read_options({"url": "redis://h", "queue": "q", "envelope": "none", "jobFrom": text})


def test_a_job_of_envelopes_comes_from_them() -> None:
    with pytest.raises(OptionError, match="'jobFrom' is for envelope=none"):
        read_options({"url": "redis://h", "queue": "q", "jobFrom": "orders"})


@pytest.mark.parametrize("carrier", CARRIERS, ids=str)
@examples(200)
@given(bodies=st.lists(st.binary(max_size=30), min_size=1, max_size=4))
def test_retries_and_dead_letters_keep_every_byte(carrier: Carrier, bodies: list[bytes]) -> None:
    count = len(bodies)
    retried = PLAIN.retried(batch(*bodies), pa.array([1] * count, pa.int32()), carrier)
    again = pa.RecordBatch.from_arrays([*retried], ["body", "headers"])
    assert PLAIN.decode(again).column("attempts").to_pylist() == [1] * count
    blocks = dead_letter_blocks(
        pa.repeat("failed", count),
        original_queues=pa.repeat("orders", count),
        attempts=pa.array([2] * count, pa.int32()),
    )
    letters = PLAIN.dead_lettered(again, blocks, carrier)
    dead = pa.RecordBatch.from_arrays([*letters], ["body", "headers"])
    found = PLAIN.decode(dead)
    assert {row["reason"] for row in found.column("dead_letter").to_pylist()} == {"failed"}
    assert found.column("attempts").to_pylist() == [2] * count
    redriven = PLAIN.redriven(dead)
    assert redriven.bodies.to_pylist() == bodies
    assert redriven.headers.null_count == count
    if carrier.headers:
        assert letters.bodies.to_pylist() == bodies


@pytest.mark.parametrize(
    "body",
    [
        b'{"babelqueue_raw":',
        b'{"babelqueue_raw":7}',
        b'{"babelqueue_raw":"x","attempts":-1}',
        b'{"babelqueue_raw":"x","attempts":99999999999999999999}',
        b'{"babelqueue_raw":"x","more":1}',
        b'{"babelqueue_raw":"!","babelqueue_encoding":"base64"}',
    ],
)
def test_what_only_looks_like_a_wrapper_is_a_body(body: bytes) -> None:
    assert PLAIN.redriven(batch(body)).bodies.to_pylist() == [body]


@pytest.mark.parametrize("block", ["7", "{", '{"reason":7}', '{"failed_at":1e99}'])
def test_a_dead_letter_header_of_a_stranger_is_none(block: str) -> None:
    [row] = decoded(b"{}", headers=[[("x-dead-letter", block), ("bq-attempts", "x")]])
    assert (row["dead_letter"], row["attempts"], row["error"]) == (None, 0, None)


def test_a_write_needs_data_or_a_body() -> None:
    options = write_options({"url": "sqlite:////tmp/never.db", "queue": "orders", "envelope": "none"})
    rows = pa.RecordBatch.from_pydict({"data": pa.array(["[1]", None]), "body": pa.array([b"x", b"\xff"])})
    with options.binding() as binding:
        made = to_messages(rows, 0, IdSource("t"), options, binding)["orders"]
        assert made.column("body").to_pylist() == [b"[1]", b"\xff"]
        nothing = pa.RecordBatch.from_pydict({"data": pa.array(["[1]", None])})
        with pytest.raises(BabelQueueError, match="row 1: data is missing, and so is body"):
            to_messages(nothing, 0, IdSource("t"), options, binding)


def test_a_write_of_envelopes_names_the_option() -> None:
    from pyspark.sql.types import StringType, StructType

    with pytest.raises(OptionError, match="set option 'envelope' to none"):
        check_columns(StructType().add("data", StringType()), form_of("babelqueue"))
    check_columns(StructType().add("data", StringType()), PLAIN)


def test_ids_are_those_of_a_replay_and_stand_where_the_broker_has_a_place() -> None:
    options = write_options({"url": "amqp://127.0.0.1:1", "queue": "orders", "envelope": "none"})
    rows = pa.RecordBatch.from_pydict({"job": pa.array(["paid", "paid"]), "data": pa.array(["1", "2"])})
    with options.binding() as binding:
        one, other = (
            named_by_headers(to_messages(rows, 0, IdSource("t"), options, binding)["orders"])
            for _ in range(2)
        )
    assert one.equals(other)
    ids = [row["meta"]["id"] for row in one.column("envelope").to_pylist()]
    assert len({*ids} - {None}) == 2
