"""The details of the published SDK's behaviour that concern a codec, one test each.

The numbers are those of our survey of SDK 1.24; 17 to 25 concern bindings and the worker.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.envelope import (
    DEAD_LETTER_TYPE,
    EnvelopeError,
    dead_letter,
    decode,
    set_attempts,
    strip_dead_letter,
)
from tests.envelope.bodies import META, array, body, compact, error, row, texts
from tests.envelope.test_encode import one as encoded

BLOCK = {
    "reason": "failed",
    "error": "boom",
    "exception": "RuntimeError",
    "failed_at": datetime(2026, 1, 1, tzinfo=UTC),
    "original_queue": "orders",
    "attempts": 3,
    "lang": "python",
}


def retried(one: bytes, attempts: int = 1) -> bytes:
    return bytes(set_attempts(array(one), pa.array([attempts], pa.int32()))[0].as_py())


def buried(one: bytes, **changes: Any) -> bytes:
    blocks = pa.array([{**BLOCK, **changes}], DEAD_LETTER_TYPE)
    return bytes(dead_letter(array(one), blocks)[0].as_py())


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(record.getMessage() for record in caplog.records)


def test_01_a_no_break_space_is_an_identity(caplog: pytest.LogCaptureFixture) -> None:
    assert row(body(job="\u00a0", urn="urn:b"))["job"] == "\u00a0"
    assert "/urn" in warnings(caplog)


@pytest.mark.parametrize(("job", "warned"), [(" \t", False), (5, True), (None, True), ({}, True)])
def test_02_urn_wins_over_an_unusable_job(job: Any, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    one = body(job=job, urn="urn:b")
    assert row(one)["job"] == "urn:b"
    assert ("/job" in warnings(caplog)) == warned
    again = json.loads(retried(one))
    assert again["job"] == "urn:b"
    assert "urn" not in again


def test_03_padding_is_kept_when_read_and_cut_when_made() -> None:
    one = body(job=" urn:a ")
    assert row(one)["job"] == " urn:a "
    assert retried(one, 0) == one
    assert json.loads(encoded(job=" urn:a "))["job"] == "urn:a"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("true", "poison"),
        ("1.0", "poison"),
        ('"1"', "poison"),
        ("2", "unsupported_schema_version"),
        ("null", "unsupported_schema_version"),
    ],
)
def test_04_only_the_integer_one_is_a_schema_version(version: str, expected: str) -> None:
    meta = compact(META).replace('"schema_version":1', f'"schema_version":{version}')
    assert error(texts(meta=meta)) == expected


@pytest.mark.parametrize("attempts", ["1.0", "true", str(2**63), '"3"'])
def test_05_attempts_of_another_type_are_poison(attempts: str) -> None:
    assert error(texts(attempts=attempts)) == "poison"


@pytest.mark.parametrize("attempts", ["-1", "-0", "null"])
def test_05_odd_attempts_are_no_poison_and_can_be_retried(attempts: str) -> None:
    assert error(texts(attempts=attempts)) in (None, "invalid_attempts")
    assert json.loads(retried(texts(attempts=attempts)))["attempts"] == 1


def test_06_the_last_of_a_repeated_key_wins() -> None:
    one = body()[:-1] + b',"job":"urn:last","attempts":7,"data":{"last":1}}'
    decoded = row(one)
    assert (decoded["job"], decoded["attempts"], decoded["data"]) == ("urn:last", 7, '{"last":1}')
    assert decoded["error"] is None


@pytest.mark.parametrize("first", ['"attempts":"x"', '"data":[]', '"trace_id":5'])
def test_06_a_wrong_type_in_an_earlier_occurrence_is_poison(first: str) -> None:
    assert error(b"{" + first.encode() + b"," + body()[1:]) == "poison"


def test_07_a_list_for_data_is_poison_and_kept_as_a_record() -> None:
    one = body(data=[])
    assert error(one) == "poison"
    assert strip_dead_letter(array(buried(one, reason="poison", attempts=0)))[0].as_py() == one
    allowed = decode(array(one), allow_list_data=True)
    assert allowed.column("data").to_pylist() == ["{}"]
    assert allowed.column("error").to_pylist() == [None]


@pytest.mark.parametrize("number", ["NaN", "1e400"])
def test_08_only_a_big_number_outside_of_data_passes(number: str) -> None:
    extended = compact(META)[:-1] + f',"ext":{number}}}'
    for place in (texts(data=f'{{"a":{number}}}'), texts(meta=extended), texts(top=number)):
        passes = number == "1e400" and b'"data":{"a"' not in place
        assert error(place) == (None if passes else "poison")
        if passes:
            assert number.encode() in retried(place)


@pytest.mark.parametrize(
    "one", ["\ufeff".encode() + body(), body() + b"\0", "\u00a0".encode() + body() + "\u00a0".encode()]
)
def test_09_what_surrounds_the_object_is_poison(one: bytes) -> None:
    assert error(one) == "poison"


def test_10_bytes_that_are_no_text_survive() -> None:
    one = body(data={"a": "x"}).replace(b'"x"', b'"\xff"')
    assert error(one) == "poison"
    record = json.loads(buried(one, reason="poison"))
    assert record["raw_encoding"] == "base64"
    assert base64.b64decode(record["raw"]) == one


@pytest.mark.parametrize("escape", [rb"\ud800", rb"\udcff"])
def test_11_half_a_surrogate_pair_is_kept_as_its_escape(escape: bytes) -> None:
    one = body(data={"a": "x"}).replace(b'"x"', b'"' + escape + b'"')
    assert row(one)["job"] == "urn:babel:orders:created"
    for sent in (retried(one), buried(one)):
        assert escape in sent
        sent.decode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"a":' + "[" * 2000 + "]" * 2000 + "}", "poison"),
        ('{"a":' + "9" * 5000 + "}", "poison"),
        ('{"a":' + "9" * 300 + "}", None),
    ],
)
def test_12_deep_nesting_and_long_integers(data: str, expected: str | None) -> None:
    assert error(texts(data=data)) == expected


def test_13_every_other_byte_stays_through_retry_and_dead_letter() -> None:
    meta = compact(META)[:-1] + ',"ext":{"a":[]},"Queue":"x"}'
    data = '{"a":{},"b":[],"c":12345678901234567,"d":1.50}'
    one = texts(meta=meta, data=data, other="[1.0]", Job='"x"')
    assert retried(one, 7) == one.replace(b'"attempts":0', b'"attempts":7')
    assert strip_dead_letter(array(buried(one, attempts=9)))[0].as_py() == one


@pytest.mark.parametrize("value", [1, "x", None, {}])
def test_14_forbidden_keys_are_dropped_and_named(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = body(timestamp=value, meta={**META, "ts": value})
    assert row(one)["error"] is None
    assert "/timestamp" in warnings(caplog)
    assert "/meta/ts" in warnings(caplog)
    again = json.loads(retried(one))
    assert "timestamp" not in again
    assert "ts" not in again["meta"]
    with pytest.raises(EnvelopeError, match=r"meta\.ts"):
        encoded(**{"meta.extra": [("ts", "1")]})


def test_15_a_block_replaces_the_block_and_sets_the_count() -> None:
    once = buried(body(), attempts=1, reason="first")
    twice = json.loads(buried(once, attempts=4))
    assert list(twice["dead_letter"]) == [*BLOCK]
    assert twice["dead_letter"]["reason"] == "failed"
    assert twice["attempts"] == twice["dead_letter"]["attempts"] == 4


@pytest.mark.parametrize(
    ("one", "wrapped"),
    [
        (b"{}", False),
        (b' {"a":1} ', False),
        (b'{"dead_letter":1}', True),
        (rb'{"dead_l\u0065tter":1}', True),
        (b"null", True),
        (b"", True),
    ],
)
def test_16_poison_is_spliced_or_wrapped(one: bytes, wrapped: bool) -> None:
    record = json.loads(buried(one, reason="poison"))
    assert ("raw" in record) == wrapped
    assert not wrapped or record["raw"] == one.decode()
