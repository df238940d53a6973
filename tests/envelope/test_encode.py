"""What encode writes, and what it refuses to write."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.envelope import (
    DEAD_LETTER_TYPE,
    ENVELOPE_SCHEMA,
    META_TYPE,
    EnvelopeError,
    decode,
    encode,
)
from babelqueue_spark.envelope.jsontext import MAX_DEPTH
from tests.envelope.bodies import BLOCK_TEXT, array, blocks, body, texts

MESSAGE: dict[str, Any] = {
    "job": "urn:babel:orders:created",
    "trace_id": "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b",
    "data": '{"order_id":1042,"amount":99.9}',
    "meta": {
        "id": "f1e2d3c4-b5a6-4789-90ab-cdef01234567",
        "queue": "orders",
        "lang": "php",
        "schema_version": 1,
        "created_at": datetime(2025, 6, 5, 14, 12, 7, tzinfo=UTC),
        "extra": [],
    },
    "attempts": 0,
}


def messages(*changes: dict[str, Any]) -> Any:
    """A batch of usual messages with some fields replaced (`meta.id` for one of meta's)."""
    rows = []
    for change in changes:
        meta = {key[5:]: value for key, value in change.items() if key.startswith("meta.")}
        top = {key: value for key, value in change.items() if not key.startswith("meta.")}
        rows.append({**MESSAGE, "meta": {**MESSAGE["meta"], **meta}, **top})
    names = [name for name in ENVELOPE_SCHEMA.names if name in {key for row in rows for key in row}]
    return pa.RecordBatch.from_pylist(rows, pa.schema([ENVELOPE_SCHEMA.field(name) for name in names]))


def one(**change: Any) -> bytes:
    [encoded] = encode(messages(change)).to_pylist()
    return bytes(encoded)


def test_a_canonical_body() -> None:
    encoded = encode(messages({}, {"attempts": 3}))
    assert encoded.type == pa.binary()
    assert encoded.to_pylist() == [body(), body(attempts=3)]


def test_no_messages() -> None:
    assert encode(messages({}).slice(0, 0)).to_pylist() == []


def test_meta_may_lack_the_field_for_extra_keys() -> None:
    batch = messages({})
    meta = batch.column("meta")
    fields = [field for field in META_TYPE if field.name != "extra"]
    short = pa.StructArray.from_arrays([meta.field(field.name) for field in fields], fields=fields)
    assert encode(batch.set_column(3, "meta", short)).to_pylist() == [body()]


def test_texts_are_escaped_as_the_sdk_escapes_them_in_any_slice() -> None:
    odd = 'a"b\\c/d\n\x00\x1f\x7f\u2028ö🚀'
    escaped = b'"a\\"b\\\\c/d\\n\\u0000\\u001f\x7f' + "\u2028ö🚀".encode() + b'"'
    batch = messages(
        {}, {"job": odd, "trace_id": odd, "meta.id": odd, "meta.queue": odd, "meta.lang": odd}, {}
    )
    for sliced in (batch, batch.slice(1), batch.slice(1, 1)):
        found = [text for text in encode(sliced).to_pylist() if text != body()]
        assert [text.count(escaped) for text in found] == [5]
        assert json.loads(found[0])["job"] == odd


def test_job_and_trace_id_lose_the_blanks_around_them_and_only_those() -> None:
    written = json.loads(one(job=" \t\n\v\f\rurn:a b\u00a0\r", trace_id="\u3000t "))
    assert (written["job"], written["trace_id"]) == ("urn:a b\u00a0", "\u3000t")


@pytest.mark.parametrize(
    "data", ["{}", ' { "a" : 1.50,\n"b":1E2 }\r\n', '{"a":"\\u00e9\\/","b":-0}', '{"a":' + "9" * 300 + "}", '{"a":1e+16}']
)  # fmt: skip
def test_data_is_written_as_it_is(data: str) -> None:
    encoded = one(data=data)
    assert encoded == texts(data=data)
    assert decode(array(encoded)).column("error").null_count == 1


@pytest.mark.parametrize(
    "data",
    [
        '{"a":{"a":1},"b":[{"a":1},{"a":2}]}',
        '{"a":"a","b":"\\"a\\":","c":":","d":":"}',
        '{"a" : 1, "b" : {"a" : "a"}}',
        '{"a":":\\"a\\":1"}',
        '{":":1,"a":":"}',
        "{}",
    ],
)
def test_a_key_may_come_again_in_another_object(data: str) -> None:
    assert json.loads(one(data=data))["data"] == json.loads(data)


def test_extra_keys_follow_the_core_keys_as_they_are() -> None:
    encoded = one(**{"meta.extra": [("ext", '{ "a":1.50}'), ('k"', '"\\u0061"'), ("none", None)]})
    assert encoded == body().replace(
        b'000},"att', b'000,"ext":{ "a":1.50},"k\\"":"\\u0061","none":null},"att'
    )


def test_a_dead_letter_block_comes_last() -> None:
    [block] = blocks({}).to_pylist()
    encoded = encode(messages({"dead_letter": block}, {"dead_letter": None})).to_pylist()
    assert encoded == [texts(dead_letter=BLOCK_TEXT), body()]
    batch = messages({}).append_column("dead_letter", pa.nulls(1, DEAD_LETTER_TYPE))
    assert encode(batch).to_pylist() == [body()]


def test_times_before_1970_and_digits_below_the_millisecond() -> None:
    assert b'"created_at":1001}' in one(**{"meta.created_at": datetime(1970, 1, 1, 0, 0, 1, 1999, UTC)})
    assert b'"created_at":-1000}' in one(**{"meta.created_at": datetime(1969, 12, 31, 23, 59, 59, 0, UTC)})


def test_what_decode_gives_can_be_encoded_again() -> None:
    bodies = [body(attempts=number) for number in range(20)] + [
        texts(data='{ "a":1.50}', dead_letter=BLOCK_TEXT)
    ]
    decoded = decode(array(*bodies))
    assert encode(decoded.drop_columns(["error"])).to_pylist() == bodies


def deep(depth: int) -> str:
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: None}) for name in ("job", "trace_id", "data", "meta", "attempts")),
    *((f"meta.{name}", {f"meta.{name}": None}) for name in MESSAGE["meta"] if name != "extra"),
    *(("job", {"job": text}) for text in ("", " \t\n\v\f\r")),
    ("trace_id", {"trace_id": " "}),
    ("meta.schema_version", {"meta.schema_version": 2}),
    *(
        ("data", {"data": text})
        for text in (
            *("", " ", "[]", "null", "1", '"{}"', "{", "{}}", "{},{}", '{"a":1,}', "{'a':1}", '{"a":01}'),
            *('{"a":NaN}', '{"a":-Infinity}', '{"a":1e400}', '{"a":' + "9" * 310 + "}", '{"a":' + "9" * 250 + "e99}"),
            *('{"b":[{"a":1},{"a":1,"a":2}]}', '{"b":[{"a":1},{"a":1e400}]}', '{"b":[{"a":1},{"a":"\\ud800"}]}'),
            *('{"a":1,"a":2}', '{"a":1,"b":[{"x":1,"x":1}]}', '{"a":1,"\\u0061":2}', '{"a":1,"a" :1}', '{"":1,"":2}'),
            *('{"a":"\\ud800"}', '{"\\udc00":1}', '{"a":"\n"}', "\u00a0{}", "\v{}", "\ufeff{}", deep(MAX_DEPTH), deep(3000)),
        )
    ),
    *(("meta.extra", {"meta.extra": [("a", text)]}) for text in ("", "x", "1 2", "NaN", '"\\ud800"', deep(900))),
    ("meta.extra", {"meta.extra": [("a", "1"), ("a", "2")]}),
    *((f"meta.{key}", {"meta.extra": [(key, "1")]}) for key in ("id", "created_at", "ts", "source", "attempts")),
]  # fmt: skip


@pytest.mark.parametrize(("field", "change"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError) as raised:
        encode(messages(*[{}] * 7, change, {}))
    assert (raised.value.row, raised.value.field) == (7, field)
    assert str(raised.value).startswith(f"row 7: {field} ")


def test_the_error_does_not_show_the_payload() -> None:
    with pytest.raises(EnvelopeError) as raised:
        one(data='{"card":"4111 1111"')
    assert "4111" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("field", ["job", "data"])
def test_texts_that_are_no_utf8_are_refused(field: str) -> None:
    """Spark's strings may hold any bytes."""
    raw = pa.array([b"urn:\xff" if field == "job" else b'{"a":"\xff"}'], pa.binary())
    batch = messages({}).set_column(messages({}).schema.get_field_index(field), field, raw.view(pa.string()))
    with pytest.raises(EnvelopeError, match="row 0: a text is not UTF-8"):
        encode(batch)


def test_two_rows_do_not_make_one_another_valid() -> None:
    for pair in (['{"a":[1', "2]}"], ['{"a":[1', "{}]},{}"], ["{},{}", "{"], ['{"a":1},{"b":2}', "{}"]):
        with pytest.raises(EnvelopeError):
            encode(messages(*({"data": text} for text in pair)))


@pytest.mark.parametrize("name", ["urn", "timestamp", "error", "body"])
def test_columns_that_an_envelope_must_not_have(name: str) -> None:
    with pytest.raises(EnvelopeError, match=name):
        encode(messages({}).append_column(name, pa.array(["x"])))


def test_deepest_data() -> None:
    assert decode(array(one(data=deep(MAX_DEPTH - 1)))).column("error").null_count == 1
