"""Edits of bodies as text: what changes, and that nothing else does."""

import base64
import json
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.envelope import dead_letter, decode, set_attempts, strip_dead_letter, validate
from tests.envelope.bodies import BLOCK_TEXT, META, array, blocks, body, compact, error, meta_texts, texts
from tests.examples import examples

CANONICAL = body()
#: Accepted bodies that only a careful edit leaves as they are.
ODD = {
    "spaces": b' {\n"job" : "urn:a" , "trace_id":"t" ,"data":{ } , "meta" : ' + compact(META).encode() + b',\t"attempts" :  0 }\r\n',
    "attempts in front": b'{"attempts":0,' + CANONICAL[1:].replace(b',"attempts":0', b""),
    "attempts in data": texts(data='{"attempts":5,"dead_letter":{"attempts":7}}'),
    "attempts in a string": texts(data=compact({"a": ',"attempts":0}'})),
    "attempts in an unknown key": texts(x='{"a":1,"attempts":5}'),
    "escaped key": CANONICAL.replace(b'"attempts"', b'"attempt\\u0073"'),
    "repeated attempts": texts(attempts='5,"attempts":0'),
    "numbers": texts(data='{"a":1.50,"b":1E2,"c":1234567890.12345678901234567890,"d":-0,"e":9007199254740993}'),
    "half a surrogate pair": texts(data='{"a":"\\ud800"}', x='"\\udcff"'),
    "1e400 outside data": texts(meta=meta_texts(ext="1e400"), x="[1e400]"),
    "unknown keys": texts(JOB='"x"', Data="[]", meta=meta_texts(Queue='"x"', ext='{ "a" : {} }')),
    "repeated keys in data": texts(data='{"a":1,"a":2}'),
    "not ASCII": body(job="urn:größe\u2028", data={"a": "🚀"}),
    "-0": texts(attempts="-0"),
}  # fmt: skip


def counts(*numbers: int) -> Any:
    return pa.array(numbers, pa.int32())


def with_attempts(one: bytes, count: int) -> bytes:
    [edited] = set_attempts(array(one), counts(count)).to_pylist()
    return bytes(edited)


def annotated(one: bytes, **change: Any) -> bytes:
    [edited] = dead_letter(array(one), blocks(change)).to_pylist()
    return bytes(edited)


def redriven(one: bytes) -> bytes:
    [edited] = strip_dead_letter(array(one)).to_pylist()
    return bytes(edited)


# --- attempts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9, 10, -1, 2**31 - 1])
def test_attempts_of_canonical_bodies(count: int) -> None:
    assert with_attempts(CANONICAL, count) == body(attempts=count)
    assert with_attempts(body(attempts=123), count) == body(attempts=count)


@pytest.mark.parametrize("name", ODD)
def test_attempts_change_their_digits_only(name: str) -> None:
    edited = with_attempts(ODD[name], 7)
    place = next(index for index, (old, new) in enumerate(zip(ODD[name], edited, strict=False)) if old != new)
    old, new = ODD[name][place:].removeprefix(b"-"), edited[place:]
    assert (old[:1], new[:1]) == (b"0", b"7")
    assert old[1:] == new[1:]
    assert json.loads(edited)["attempts"] == 7
    assert error(edited) is None


@pytest.mark.parametrize("name", ODD)
def test_setting_what_is_there_changes_nothing(name: str) -> None:
    assert with_attempts(ODD[name], 0) == ODD[name]


def test_attempts_that_are_missing_or_null() -> None:
    assert with_attempts(b"{}", 1) == b'{"attempts":1}'
    assert with_attempts(b" { } ", 1) == b' { "attempts":1} '
    assert with_attempts(b'{"a":1}', 1) == b'{"a":1,"attempts":1}'
    assert with_attempts(b'{"attempts":null,"a":1}', 1) == b'{"attempts":1,"a":1}'


@pytest.mark.parametrize("one", [CANONICAL, b' {"attempts":5} '])
def test_a_null_count_changes_nothing(one: bytes) -> None:
    assert set_attempts(array(one), pa.array([None], pa.int32())).to_pylist() == [one]


@pytest.mark.parametrize(
    "one", [b"", b"nope", b"[]", b"null", b'{"attempts":0', b'x,"attempts":0}', b'\xff{"attempts":0}']
)
def test_what_is_no_object_comes_back_as_it_is(one: bytes) -> None:
    assert with_attempts(one, 7) == one
    assert redriven(one) == one


def test_null_stays_null() -> None:
    assert set_attempts(array(None, CANONICAL), counts(1, 1)).to_pylist() == [None, body(attempts=1)]
    assert strip_dead_letter(array(None)).to_pylist() == [None]


def test_forbidden_keys_are_not_passed_on_and_urn_becomes_job() -> None:
    meta = meta_texts(ts="5", ext="1.50", source='"x"')
    one = texts(timestamp="{}", meta=meta, urn='"urn:b"')
    assert with_attempts(one, 0) == texts(meta=meta_texts(ext="1.50"))
    assert with_attempts(b'{"timestamp":1}', 2) == b'{"attempts":2}'
    assert with_attempts(b'{"timestamp":1,"a":1.50 ,"timestamp":2 }', 2) == b'{"a":1.50  ,"attempts":2}'
    assert with_attempts(b'{"urn" : "urn:b","job":" ","attempts":0}', 1) == b'{"job" : "urn:b","attempts":1}'
    assert with_attempts(b'{"u\\u0072n":"urn:b","attempts":0}', 1) == b'{"job":"urn:b","attempts":1}'
    assert with_attempts(b'{"urn":5,"attempts":0}', 1) == b'{"urn":5,"attempts":1}'


def test_a_mixed_batch_keeps_its_order() -> None:
    bodies = [CANONICAL, *ODD.values(), b"nope", CANONICAL] * 3
    edited = set_attempts(array(*bodies), counts(*range(len(bodies)))).to_pylist()
    assert [one if one == b"nope" else json.loads(one)["attempts"] for one in edited] == [
        one if one == b"nope" else number for number, one in enumerate(bodies)
    ]


# --- dead letters -----------------------------------------------------------------------------------------


def test_a_block_is_appended_and_its_count_taken_over() -> None:
    assert annotated(CANONICAL) == texts(attempts="3", dead_letter=BLOCK_TEXT)
    assert (
        annotated(body(attempts=...))
        == body(attempts=...)[:-1] + f',"attempts":3,"dead_letter":{BLOCK_TEXT}}}'.encode()
    )


def test_a_block_of_nulls_and_zero() -> None:
    empty = dict.fromkeys(("reason", "error", "exception", "failed_at", "original_queue", "attempts", "lang"))
    text = compact(empty)
    assert annotated(CANONICAL, **empty) == texts(dead_letter=text)


@pytest.mark.parametrize("name", ODD)
def test_a_block_and_its_removal_leave_every_other_byte(name: str) -> None:
    edited = annotated(ODD[name], attempts=0)
    block = BLOCK_TEXT.replace('"attempts":3', '"attempts":0')
    assert edited.replace(f',"dead_letter":{block}'.encode(), b"", 1) == ODD[name]
    assert error(edited) is None
    assert redriven(edited) == ODD[name]


def test_a_block_replaces_the_one_that_is_there() -> None:
    old = '{"reason":"x","more":1}'
    one = texts(dead_letter=old, x="1")
    assert annotated(one) == texts(attempts="3", dead_letter=BLOCK_TEXT, x="1")
    assert annotated(texts(dead_letter="null")) == texts(attempts="3", dead_letter=BLOCK_TEXT)
    assert annotated(texts(dead_letter=f'{old},"x":1,"dead_letter":{old}')) == texts(
        attempts="3", x="1", dead_letter=BLOCK_TEXT
    )
    assert annotated(annotated(CANONICAL)) == annotated(CANONICAL)


def test_well_typed_bodies_that_are_refused_are_annotated_too() -> None:
    for one in (texts(meta="null"), texts(data="null"), texts(meta=meta_texts(schema_version="2"))):
        assert annotated(one, attempts=0) == one[:-1] + annotated(CANONICAL, attempts=0)[len(CANONICAL) - 1 :]


RECORDS: list[tuple[bytes, bytes]] = [
    (b"{}", b'{"dead_letter":%b}'),
    (b' {"a":1} ', b'{"a":1,"dead_letter":%b}'),
    (b'{"a": 1 }', b'{"a": 1 ,"dead_letter":%b}'),
    (b'{"job":5,"meta":"x","attempts":"x"}', b'{"job":5,"meta":"x","attempts":"x","dead_letter":%b}'),
    (texts(data="[]"), texts(data="[]")[:-1].replace(b"%", b"%%") + b',"dead_letter":%b}'),
    (b'{"dead_letter":1}', b'{"raw":"{\\"dead_letter\\":1}","dead_letter":%b}'),
    (b'{"dead_l\\u0065tter":1}', b'{"raw":"{\\"dead_l\\\\u0065tter\\":1}","dead_letter":%b}'),
    (b'{"a":"\\ud800"}', b'{"raw":"{\\"a\\":\\"\\\\ud800\\"}","dead_letter":%b}'),
    (b'{"a":"\\\\ud800"}', b'{"a":"\\\\ud800","dead_letter":%b}'),
    (b'{"a":"\\ud83d\\ude00"}', b'{"a":"\\ud83d\\ude00","dead_letter":%b}'),
    (b'{"a":"\\ud83d","b":"\\ude00"}', b'{"raw":"{\\"a\\":\\"\\\\ud83d\\",\\"b\\":\\"\\\\ude00\\"}","dead_letter":%b}'),
    (b'{"a":NaN}', b'{"raw":"{\\"a\\":NaN}","dead_letter":%b}'),
    (b'{"a":1e400}', b'{"a":1e400,"dead_letter":%b}'),
    (b'{"a":' + b"9" * 5000 + b"}", b'{"raw":"{\\"a\\":' + b"9" * 5000 + b'}","dead_letter":%b}'),
    (b'{"a":{"dead_letter":1}}', b'{"a":{"dead_letter":1},"dead_letter":%b}'),
    (b"null", b'{"raw":"null","dead_letter":%b}'),
    (b"", b'{"raw":"","dead_letter":%b}'),
    (b'a"\n\x00', b'{"raw":"a\\"\\n\\u0000","dead_letter":%b}'),
    (b"\xef\xbb\xbf{}", b'{"raw":"\xef\xbb\xbf{}","dead_letter":%b}'),
    (b'{"a":"\xff"}', b'{"raw":"eyJhIjoi/yJ9","raw_encoding":"base64","dead_letter":%b}'),
    (b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", b'{"raw":"{\\"a\\":' + b"[" * 2000 + b"]" * 2000 + b'}","dead_letter":%b}'),
]  # fmt: skip


@pytest.mark.parametrize(("one", "record"), RECORDS, ids=lambda value: f"{value[:30]!r}")
@pytest.mark.parametrize("reason", ["poison", "missing_urn"])
def test_poison_becomes_a_record_and_comes_back(one: bytes, record: bytes, reason: str) -> None:
    block = BLOCK_TEXT.replace('"failed"', f'"{reason}"', 1).encode()
    assert annotated(one, reason=reason) == record % block
    assert redriven(annotated(one, reason=reason)) == (one.strip() if record.startswith(b'{"a"') else one)


def test_the_reason_poison_makes_a_record_of_any_body() -> None:
    block = BLOCK_TEXT.replace('"failed"', '"poison"', 1)
    assert annotated(CANONICAL, reason="poison") == texts(dead_letter=block)
    one = texts(dead_letter=BLOCK_TEXT)
    assert json.loads(annotated(one, reason="poison"))["raw"] == one.decode()


def test_every_body_needs_a_block() -> None:
    with pytest.raises(ValueError, match="needs a dead letter block"):
        dead_letter(array(CANONICAL), pa.nulls(1, blocks({}).type))


def test_what_only_looks_like_a_wrapper_is_no_wrapper() -> None:
    for raw in ("5", '"x","raw_encoding":"rot13"', '"*","raw_encoding":"base64"', '"\\ud800"'):
        one = f'{{"raw":{raw},"dead_letter":{{}}}}'.encode()
        assert redriven(one) == one
    assert redriven(b'{"raw":"x","a":1,"dead_letter":{}}') == b'{"raw":"x","a":1}'


# --- redrive ----------------------------------------------------------------------------------------------


def test_a_block_is_cut_and_the_count_is_zero() -> None:
    assert redriven(texts(attempts="3", dead_letter=BLOCK_TEXT)) == CANONICAL
    assert redriven(texts(dead_letter=BLOCK_TEXT, attempts="3")) == CANONICAL
    assert redriven(b'{"dead_letter":{} , "attempts":12}') == b'{"attempts":0}'
    assert redriven(b'{ "dead_letter":{} }') == b"{  }"
    assert redriven(b'{"a":1 , "dead_letter":{} ,"attempts":null}') == b'{"a":1  ,"attempts":0}'
    assert redriven(body(attempts=5)) == CANONICAL


def test_a_block_within_a_block_or_in_data_is_not_taken_for_the_block() -> None:
    data = compact({"a": f',"dead_letter":{BLOCK_TEXT}}}'})
    assert redriven(texts(data=data, attempts="1")) == texts(data=data)
    inner = texts(attempts="1", dead_letter='{"a":1,"dead_letter":{}}')
    assert redriven(inner) == CANONICAL
    unknown = texts(x='{"a":1,"dead_letter":{}}')
    assert redriven(unknown) == unknown
    nested = CANONICAL[:-1] + b',"x":' + CANONICAL[:-1] + b',"dead_letter":{}}}'
    assert redriven(nested) == nested


@pytest.mark.parametrize(
    "one",
    [
        b'{"a":1' + b',"timestamp":1' * 100_000 + b"}",
        b'{"job":"urn:a"' + b',"urn":"urn:b"' * 50_000 + b',"dead_letter":{}' * 50_000 + b"}",
        texts(data=compact({"a": "x" * 5_000_000})),
        texts(x=compact([[]] * 500_000)),
        b'{"a":"' + b'\\"' * 2_500_000,
        b"\xff" * 5_000_000,
    ],
    ids=lambda one: f"{one[:20]!r}",
)
def test_big_bodies_take_time_in_proportion(one: bytes) -> None:
    started = time.process_time()
    with_attempts(one, 1)
    redriven(annotated(one))
    assert time.process_time() - started < 60


# --- many hops --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["canonical", *ODD])
def test_a_hundred_hops_leave_every_other_byte(name: str) -> None:
    original = {"canonical": CANONICAL, **ODD}[name]
    hopping = original
    for hop in range(1, 101):
        hopping = with_attempts(hopping, hop)
        assert json.loads(hopping)["attempts"] == hop
        if hop % 3 == 0:
            hopping = annotated(annotated(hopping, attempts=hop), attempts=hop + 1, reason="unknown_urn")
            assert json.loads(hopping)["attempts"] == hop + 1
        if hop % 5 == 0:
            hopping = redriven(hopping)
    assert redriven(hopping) == (original.replace(b"-0", b"0") if name == "-0" else original)


keys = st.sampled_from(["job", "urn", "attempts", "dead_letter", "data", "x", "attempt\\u0073", "ra\\\\w"])
members = st.lists(
    st.tuples(
        keys, st.sampled_from(["0", "null", "{}", '"urn:x"', '"}"', "[1, 2]", '{"attempts":1}', "1.50"])
    ),
    max_size=5,
)
gaps = st.sampled_from(["", " ", "\n"])


@examples(200)
@given(members, gaps, st.integers(0, 99))
def test_edits_of_any_object(pairs: list[tuple[str, str]], gap: str, count: int) -> None:
    text = "{" + gap + f"{gap},".join(f'"{key}"{gap}:{gap}{value}' for key, value in pairs) + gap + "}"
    before = json.loads(text)
    retried = json.loads(with_attempts(text.encode(), count))
    assert retried["attempts"] == count
    assert {**before, "attempts": 0}.keys() - {"urn", "job"} == retried.keys() - {"urn", "job"}
    record = json.loads(annotated(text.encode(), attempts=count))
    assert record["dead_letter"]["attempts"] == count
    if "raw" not in record:
        assert {**before, "attempts": 0, "dead_letter": 0}.keys() - {"urn", "job"} >= record.keys() - {
            "urn",
            "job",
        }
    assert "dead_letter" not in json.loads(redriven(annotated(text.encode()))) or record.get("raw") == text


@examples(100)
@given(st.binary(max_size=30))
def test_any_bytes_survive_the_dead_letter_queue(one: bytes) -> None:
    record = annotated(one, reason="poison")
    assert json.loads(record)["dead_letter"]["original_queue"] == "orders"
    assert redriven(record).strip() == one.strip()
    if b"raw_encoding" in record:
        assert base64.b64decode(json.loads(record)["raw"]) == one


def test_annotated_bodies_decode_to_their_block() -> None:
    bodies = [CANONICAL, *ODD.values()]
    edited = dead_letter(array(*bodies), blocks(*[{}] * len(bodies)))
    assert validate(edited).null_count == len(bodies)
    assert decode(edited).column("dead_letter") == blocks(*[{}] * len(bodies))
    assert decode(edited).column("attempts").to_pylist() == [3] * len(bodies)
