"""What decode makes of single bodies: verdicts, columns, limits."""

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from babelqueue_spark.envelope import ENVELOPE_SCHEMA, Reason, decode, validate
from babelqueue_spark.envelope.jsontext import MAX_DEPTH
from babelqueue_spark.envelope.scan import too_big_numbers
from tests.envelope.bodies import BLOCK_TEXT, META, array, body, compact, error, meta_texts, row, texts

NOTHING = dict.fromkeys(ENVELOPE_SCHEMA.names)


def nested(depth: int) -> str:
    """A JSON object in which arrays are nested, `depth` levels in all."""
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


def test_a_canonical_body() -> None:
    assert row(body()) == {
        "job": "urn:babel:orders:created",
        "trace_id": "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b",
        "data": '{"order_id":1042,"amount":99.9}',
        "meta": {
            **{key: META[key] for key in ("id", "queue", "lang", "schema_version")},
            "created_at": datetime(2025, 6, 5, 14, 12, 7, tzinfo=UTC),
            "extra": [],
        },
        "attempts": 0,
        "dead_letter": None,
        "error": None,
    }


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_bodies_of_every_string_type_in_order_and_sliced(kind: Any) -> None:
    bodies = pa.array([body(attempts=number % 20) for number in range(5000)], pa.binary()).cast(kind)
    assert decode(bodies).column("attempts").to_pylist() == [number % 20 for number in range(5000)]
    assert decode(bodies.slice(3, 4)).column("attempts").to_pylist() == [3, 4, 5, 6]


def test_no_bodies() -> None:
    assert decode(array()).num_rows == 0
    assert decode(array()).schema == ENVELOPE_SCHEMA


NASTY: dict[str, tuple[bytes | None, str | None]] = {
    "null": (None, "poison"),
    "empty": (b"", "poison"),
    "spaces": (b" \n", "poison"),
    "binary": (bytes(range(256)), "poison"),
    "truncated": (body()[:-1], "poison"),
    "followed by more": (body() + b"{}", "poison"),
    "followed by NUL": (body() + b"\0", "poison"),
    "between NBSP": (b"\xc2\xa0" + body() + b"\xc2\xa0", "poison"),
    "BOM": (b"\xef\xbb\xbf" + body(), "poison"),
    "UTF-16": (body().decode().encode("utf-16"), "poison"),
    "array": (b"[" + body() + b"]", "poison"),
    "JSON null": (b"null", "poison"),
    "JSON string": (b'"x"', "poison"),
    "trailing comma": (body()[:-1] + b",}", "poison"),
    "single quotes": (body().replace(b'"', b"'"), "poison"),
    "0xFF in a string": (body(job="urn:x").replace(b"urn:x", b"urn:\xff"), "poison"),
    "0xFF in data": (body(data={"a": "?"}).replace(b"?", b"\xff"), "poison"),
    "0xFF in an unknown key": (texts(x='"?"').replace(b"?", b"\xff"), "poison"),
    "encoded surrogate in data": (body(data={"a": "?"}).replace(b"?", b"\xed\xa0\x80"), "poison"),
    "control character": (body(data={"a": "?"}).replace(b"?", b"\x01"), "poison"),
    "NaN in data": (texts(data='{"a":NaN}'), "poison"),
    "NaN in an unknown key": (texts(x="NaN"), "poison"),
    "-Infinity in meta": (texts(meta=meta_texts(ext="-Infinity")), "poison"),
    "1e400 in data": (texts(data='{"a":[1e400]}'), "poison"),
    "-1E+400 in data": (texts(data='{"a":-1E+400 }'), "poison"),
    "1e0309 in data": (texts(data='{"a":1e0309}'), "poison"),
    "250 digits and e99 in data": (texts(data='{"a":' + "9" * 250 + "e99}"), "poison"),
    "1e-400 in data": (texts(data='{"a":1e-400}'), None),
    "1e400 in a string of data": (texts(data='{"a":"1e400, 1e400"}'), None),
    "1e400 in meta": (texts(meta=meta_texts(ext="1e400")), None),
    "1e400 in an unknown key": (texts(x="1e400"), None),
    "300-digit integer in data": (texts(data='{"a":' + "9" * 300 + "}"), None),
    "310-digit integer in data": (texts(data='{"a":' + "9" * 310 + "}"), "poison"),
    "310-digit integer in an unknown key": (texts(x="9" * 310), None),
    "5000-digit integer in data": (texts(data='{"a":' + "9" * 5000 + "}"), "poison"),
    "5000-digit integer in an unknown key": (texts(x="9" * 5000), "poison"),
    "5000-digit attempts": (texts(attempts="1" * 5000), "poison"),
    "leading zero": (texts(data='{"a":01}'), "poison"),
    "deepest data": (texts(data=nested(MAX_DEPTH - 1)), None),
    "too deep data": (texts(data=nested(MAX_DEPTH)), "poison"),
    "2000-deep data": (texts(data=nested(2000)), "poison"),
    "2000-deep unknown key": (texts(x=nested(2000)), "poison"),
    "200000-deep brackets": (b"[" * 200_000, "poison"),
    "brackets in strings": (texts(data=compact({"a": "[{" * 3000})), None),
    "lone surrogate escape in data": (texts(data='{"a":"\\ud800"}'), None),
    "lone surrogate escape in an unknown key": (texts(x='"\\udcff"'), None),
    "surrogate pair escape": (texts(data='{"a":"\\ud83d\\ude00"}'), None),
    "schema_version true": (texts(meta=meta_texts(schema_version="true")), "poison"),
    "schema_version 1.0": (texts(meta=meta_texts(schema_version="1.0")), "poison"),
    'schema_version "1"': (texts(meta=meta_texts(schema_version='"1"')), "poison"),
    "schema_version 1e0": (texts(meta=meta_texts(schema_version="1e0")), "poison"),
    "schema_version 2": (texts(meta=meta_texts(schema_version="2")), "unsupported_schema_version"),
    "schema_version 2^40": (texts(meta=meta_texts(schema_version=str(2**40))), "unsupported_schema_version"),
    "schema_version null": (texts(meta=meta_texts(schema_version="null")), "unsupported_schema_version"),
    "empty meta": (body(meta={}), "unsupported_schema_version"),
    "meta null": (body(meta=None), "missing_meta"),
    "no meta": (body(meta=...), "missing_meta"),
    "meta list": (body(meta=[]), "poison"),
    "meta.id number": (texts(meta=meta_texts(id="5")), "poison"),
    "meta.id null": (texts(meta=meta_texts(id="null")), None),
    "created_at beyond int64": (texts(meta=meta_texts(created_at=str(2**63))), "poison"),
    "attempts 1.0": (texts(attempts="1.0"), "poison"),
    "attempts 1e0": (texts(attempts="1e0"), "poison"),
    "attempts true": (texts(attempts="true"), "poison"),
    "attempts text": (texts(attempts='"3"'), "poison"),
    "attempts 2^63": (texts(attempts=str(2**63)), "poison"),
    "attempts -1": (texts(attempts="-1"), None),
    "attempts -0": (texts(attempts="-0"), None),
    "attempts null": (texts(attempts="null"), "invalid_attempts"),
    "no attempts": (body(attempts=...), "invalid_attempts"),
    "data list": (body(data=[1, 2]), "poison"),
    "data empty list": (body(data=[]), "poison"),
    "data text": (body(data="{}"), "poison"),
    "data null": (body(data=None), "invalid_data"),
    "no data": (body(data=...), "invalid_data"),
    "trace_id null": (body(trace_id=None), "missing_trace_id"),
    "trace_id blank": (body(trace_id=" \t\n\v\f\r"), "missing_trace_id"),
    "trace_id NBSP": (body(trace_id="\u00a0"), None),
    "trace_id number": (body(trace_id=5), "poison"),
    "no job": (body(job=...), "missing_urn"),
    "job blank": (body(job="\v"), "missing_urn"),
    "job number": (body(job=5), "missing_urn"),
    "nothing": (b"{}", "missing_urn"),
    "dead_letter list": (texts(dead_letter="[]"), "poison"),
    "dead_letter null": (texts(dead_letter="null"), None),
    "dead_letter.attempts text": (texts(dead_letter='{"attempts":"3"}'), "poison"),
    "dead_letter of other keys": (texts(dead_letter='{"x":[]}'), None),
    "attempts text, then a number": (texts(attempts='"x","attempts":0'), "poison"),
    "attempts beyond int64, then a number": (texts(attempts=f'{2**63},"attempts":0'), "poison"),
    "data list, then an object": (texts(data='[],"data":{}'), "poison"),
    "data 1e400, then an object": (texts(data='{"a":1e400},"data":{}'), "poison"),
    "data list under an escaped key, then an object": (texts(data='{}').replace(b'"job"', b'"dat\\u0061":[],"job"'), "poison"),
    "data with 0xFF, then an object": (texts(data='{"a":"?"},"data":{}').replace(b"?", b"\xff"), "poison"),
    "meta with a number as id, then without": (texts(meta=f'{{"id":5}},"meta":{meta_texts()}'), "poison"),
    "a string that ends early": (body().replace(b'"trace_id"', b'"trace_x","trace_id"'), "poison"),
    "a string that ends early, in the end": (body().replace(b'"queue":"', b'"queue":"a","b'), "poison"),
    "job, then a number": (texts(job='"urn:x","job":5'), "missing_urn"),
    "job number, then an URN": (texts(job='5,"job":"urn:x"'), None),
}  # fmt: skip


@pytest.mark.parametrize("name", NASTY)
def test_reasons(name: str) -> None:
    one, reason = NASTY[name]
    assert error(one) == reason


def test_nasty_bodies_leave_their_neighbours_alone() -> None:
    mixed = [one for nasty, _ in NASTY.values() for one in (body(), nasty)]
    reasons = [code for _, reason in NASTY.values() for code in (None, reason)]
    assert validate(array(*mixed)).to_pylist() == reasons


def test_the_reasons_come_in_the_order_of_the_checks() -> None:
    members: dict[str, Any] = {"job": ..., "meta": ..., "data": ..., "trace_id": ..., "attempts": ...}
    order = []
    for repaired in ("job", "meta", None, "data", "trace_id", "attempts"):
        order.append(error(body(**members)))
        if repaired == "meta":
            members["meta"] = {}
        elif repaired is None:
            del members["meta"]
        else:
            del members[repaired]
    others = (Reason.POISON, Reason.INVALID_PAYLOAD)  # the latter is a catalog's
    assert order == [reason.value for reason in Reason if reason not in others]


def test_a_number_out_of_range_is_found_at_any_place_in_a_batch() -> None:
    bad = texts(data='{"a":' + "9" * 212 + "e97}")
    digits = body(data={"a": 10**60})
    for place in range(60):
        shift = body(data={"a": "x" * place})
        expected = [None, None, "poison", None, None]
        assert validate(array(shift, digits, bad, digits, body())).to_pylist() == expected


def test_data_full_of_digits_is_not_suspected() -> None:
    text = compact({"a": list(range(100_000, 100_500)), "b": "0123456789" * 15})
    assert too_big_numbers(np.frombuffer(text.encode() * 3, np.uint8)) == []
    long = text.encode() + b"[" + b"1" * 210 + b"]" + text.encode()
    assert too_big_numbers(np.frombuffer(long, np.uint8)) != []


# --- identity ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["\u00a0", "\u2003", "\u3000", "\x1c", " urn:a "])
def test_a_job_of_unicode_spaces_is_an_identity_and_nothing_is_trimmed(job: str, caplog: Any) -> None:
    assert row(body(job=job, urn="urn:b"))["job"] == job
    assert ["/urn" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("job", "warned"), [(" \t", 0), ("", 0), (..., 0), (5, 1), (None, 1), ({}, 1), ([], 1)]
)
def test_the_alias_urn_stands_in_for_an_unusable_job(job: Any, warned: int, caplog: Any) -> None:
    assert row(body(job=job, urn="urn:b"))["job"] == "urn:b"
    assert ["/job" in record.getMessage() for record in caplog.records] == [True] * warned


@pytest.mark.parametrize("urn", [5, None, "", " \f"])
def test_an_unusable_urn_is_no_identity(urn: Any) -> None:
    assert error(body(job=..., urn=urn)) == "missing_urn"
    assert error(body(urn=urn)) is None


def test_the_last_of_a_repeated_key_wins() -> None:
    decoded = row(
        texts(job='"urn:a","job":"urn:b"', attempts='1,"attempts":2', data='{"a":1},"data":{"b":2}')
    )
    assert (decoded["job"], decoded["attempts"], decoded["data"]) == ("urn:b", 2, '{"b":2}')


def test_forbidden_keys_of_any_type_are_passed_over_and_named(caplog: Any) -> None:
    forbidden = {"max_retries": {}, "attempts": "x", "source": None, "ts": [1]}
    decoded = row(body(timestamp="x", meta={**META, **forbidden, "ext": 1}))
    assert decoded["error"] is None
    assert decoded["meta"]["extra"] == [("ext", "1")]
    named = {record.getMessage().split()[4] for record in caplog.records}
    assert named == {"/timestamp", *(f"/meta/{key}" for key in forbidden)}
    assert all(record.levelno == logging.WARNING for record in caplog.records)


# --- columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        '{ "a" : 1.50 }',
        '{"a":1E2,"b":12345678901234567890.1234567890,"c":-0,"d":17e3}',
        '{"a":{},"b":[],"c":9007199254740993}',
        '{"\\u0061":"\\/","\\ud83d\\ude00":"\\ud800"}',
        '{"a":1,"a":2}',
        '{"a":"größe \u2028 \x7f"}',
        "{\n}",
    ],
)
def test_data_is_the_text_as_it_stood(data: str) -> None:
    decoded = row(texts(data=data))
    assert decoded["error"] is None
    assert decoded["data"] == data


def test_whitespace_and_key_order_do_not_matter() -> None:
    parsed = json.loads(body())
    shuffled = dict(reversed(parsed.items()))
    for text in (json.dumps(parsed), json.dumps(shuffled), json.dumps(parsed, indent=2), compact(shuffled)):
        decoded = row(text.encode())
        assert decoded == {**row(body()), "data": decoded["data"]}
        assert json.loads(decoded["data"]) == parsed["data"]


def test_unknown_keys_of_meta_are_kept_as_text() -> None:
    extra = {"ext": '{ "a" : 1.50 }', "Queue": '"x"', "n": "null", "s": '"\\u0061"', "e": "1e400"}
    assert row(texts(meta=meta_texts(**extra)))["meta"]["extra"] == list(extra.items())


def test_a_dead_letter_block() -> None:
    decoded = row(texts(dead_letter=BLOCK_TEXT))
    assert decoded["error"] is None
    assert decoded["dead_letter"] == {
        "reason": "failed",
        "error": 'Gateway "timeout"',
        "exception": "App\\Exceptions\\GatewayTimeout",
        "failed_at": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        "original_queue": "orders",
        "attempts": 3,
        "lang": "python",
    }


def test_numbers_beyond_their_column() -> None:
    meta = meta_texts(schema_version=str(2**40), created_at=str(2**60))
    block = f'{{"failed_at":{-(2**60)},"attempts":{-(2**40)}}}'
    decoded = row(texts(attempts=str(2**40), meta=meta, dead_letter=block))
    assert decoded["attempts"] == 2**31 - 1
    assert decoded["meta"]["schema_version"] is None
    assert decoded["meta"]["created_at"] is None
    assert decoded["dead_letter"]["failed_at"] is None
    assert decoded["dead_letter"]["attempts"] == -(2**31)


def test_half_a_surrogate_pair_shows_as_a_replacement_character() -> None:
    decoded = row(texts(job='"a\\ud800b"', meta=meta_texts(ext='"\\ud800"')))
    assert decoded["error"] is None
    assert decoded["job"] == "a\ufffdb"
    assert decoded["meta"]["extra"] == [("ext", '"\\ud800"')]


def test_poison_that_is_an_object_shows_what_has_its_type() -> None:
    decoded = row(texts(attempts='"x"', meta=meta_texts(id="5", queue='"q"'), data='{"a":NaN}'))
    assert decoded["error"] == "poison"
    assert decoded["job"] == "urn:babel:orders:created"
    assert decoded["data"] == '{"a":NaN}'
    assert (decoded["attempts"], decoded["meta"]["id"], decoded["meta"]["queue"]) == (None, None, "q")
    invalid = row(body(job="urn:?", data={"a": "?"}).replace(b"?", b"\xff"))
    assert (invalid["error"], invalid["job"], invalid["data"]) == ("poison", "urn:\ufffd", '{"a":"\ufffd"}')


@pytest.mark.parametrize("one", [None, b"", b"[1]", b'{"job":"urn:a"', b'{"x":' + b"[" * 2000])
def test_poison_that_is_no_object_shows_nothing(one: bytes | None) -> None:
    assert row(one) == {**NOTHING, "error": "poison"}


def test_an_empty_list_for_data_can_be_let_through() -> None:
    decoded = row(texts(data="[ ]"), allow_list_data=True)
    assert (decoded["error"], decoded["data"]) == (None, "{}")
    assert error(texts(data="[ ]")) == "poison"
    assert error(texts(data="[1]"), allow_list_data=True) == "poison"
    assert error(texts(data='[],"data":{}'), allow_list_data=True) is None
    assert error(texts(data="[]", attempts='"x"'), allow_list_data=True) == "poison"


# --- robustness -------------------------------------------------------------------------------------------


def at_depth(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else at_depth(frames - 1, call)


def test_the_depth_limit_is_the_same_on_any_stack() -> None:
    frames = sys.getrecursionlimit() - 250
    for depth, reason in ((MAX_DEPTH - 1, None), (MAX_DEPTH, "poison")):
        bodies = array(texts(data=nested(depth)), texts(x=nested(depth)))
        assert at_depth(frames, lambda bodies=bodies: validate(bodies).to_pylist()) == [reason] * 2


@pytest.mark.parametrize(
    "one",
    [
        texts(data=compact({"a": "x" * 5_000_000})),
        texts(data=compact({str(number): number for number in range(300_000)})),
        texts(data=compact({"a": [[]] * 800_000})),
        texts(x='"' + "\\\\" * 2_500_000 + '"'),
        b'{"' + b'\\"' * 2_500_000,
        b'"' * 5_000_000,
        b"[" * 5_000_000,
        b"{" * 2_500_000 + b'"' * 2_500_000,
        b'{"data":' * 600_000,
        b" " * 5_000_000,
        b"{" + b'"a":1,' * 100_000 + b"}",
        texts(data='{"a":' + "1e400," * 100_000 + "}"),
        b"\xff" * 5_000_000,
    ],
    ids=lambda one: f"{one[:8]!r} {len(one)}",
)  # fmt: skip
def test_big_bodies_take_time_in_proportion(one: bytes) -> None:
    started = time.process_time()
    validate(array(one))
    assert time.process_time() - started < 60
