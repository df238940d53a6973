"""The codec against the published SDK: the same reason and the same fields, for bodies of every kind."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from babelqueue import BabelQueueError, EnvelopeCodec
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from babelqueue_spark.envelope import decode, encode
from tests.envelope.bodies import ENVELOPE, META, array, compact
from tests.examples import examples

FORBIDDEN = {"max_retries", "attempts", "source", "ts"}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 12),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["", " ", "\t", "\u00a0", "urn:a", " urn:a ", "\ud800", "data", '"data"', "e400,", "\x00"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=3)
literals = st.one_of(
    st.builds(json.dumps, values, ensure_ascii=st.booleans()),
    st.sampled_from(
        [
            *("1e400", "-1E+400", "1e0400", "1e-400", "1.0", "-0", "1e2", "9" * 305, "9" * 310, "9" * 5000),
            *(
                "[]",
                "{}",
                "[ ]",
                "{ }",
                "NaN",
                "Infinity",
                "01",
                "+1",
                "1.",
                "tru",
                '"\\ud800"',
                '"\\ud83d\\ude00"',
            ),
            *(
                '"\x01"',
                '"\\x"',
                "'a'",
                '{"a":1,"a":2}',
                '{"a":1e400}',
                '[1,2,{"b":[]}]',
                '{"a":' + "9" * 308 + "}",
            ),
            *(str(2**63), str(2**63 - 1), str(-(2**63)), str(-(2**63) - 1), str(2**31), "1749132727000"),
        ]
    ),
)
meta_keys = st.sampled_from([*META, "ext", "ts", "source", "Queue", "i\\u0064"])
top_keys = st.sampled_from(
    [*ENVELOPE, *ENVELOPE, "urn", "dead_letter", "timestamp", "x", "JOB", "dat\\u0061", "\\u006aob", "data "]
)
block_keys = st.sampled_from(["reason", "error", "failed_at", "attempts", "lang", "x"])
gaps = st.sampled_from(["", "", "", "", " ", "\n\t", "\r"])


@st.composite
def object_texts(draw: st.DrawFn, usual: dict[str, Any], keys: st.SearchStrategy[str], odd: Any) -> str:
    """A JSON object, or nearly: the usual members, some of them replaced, left out, repeated or added."""
    members = [(key, compact(value)) for key, value in usual.items() if draw(st.integers(0, 12))]
    for _ in range(draw(st.integers(0, 3))):
        members.insert(draw(st.integers(0, len(members))), (draw(keys), draw(odd)))
    gap = draw(gaps)
    inside = f"{gap},{gap}".join(f'"{key}"{gap}:{gap}{text}' for key, text in members)
    return f"{{{gap}{inside}{gap}}}"


meta_texts = object_texts(META, meta_keys, literals)
block_texts = object_texts({"reason": "failed", "failed_at": 1, "attempts": 2}, block_keys, literals)
nested = st.one_of(literals, meta_texts, block_texts, st.builds(compact, objects))


@st.composite
def body_texts(draw: st.DrawFn) -> bytes:
    text = draw(object_texts(ENVELOPE, top_keys, nested))
    if draw(st.booleans()):
        text = text.replace(compact(META), draw(meta_texts), 1)
    if draw(st.booleans()):
        text = text.replace(compact(ENVELOPE["data"]), draw(st.builds(compact, objects)), 1)
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged_bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(body_texts()))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(body)))
        kind = draw(st.sampled_from(["cut", "insert", "end"]))
        if kind == "cut":
            del body[place : place + draw(st.integers(1, 4))]
        elif kind == "insert":
            body[place:place] = draw(
                st.sampled_from([b"\xff", b"\xc3", b"}", b"{", b'"', b"\\", b",", b" ", b"\xc2\xa0"])
            )
        else:
            del body[place:]
    return bytes(body)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


CHECKS = {
    "meta": "unsupported_schema_version",
    "data": "invalid_data",
    "trace_id": "missing_trace_id",
    "attempts": "invalid_attempts",
}


def expected(body: bytes) -> tuple[str | None, dict[str, Any]]:
    """What the SDK says of a body: the reason why it is refused, and what is in it."""
    text = body.decode("utf-8", "surrogateescape")
    if EnvelopeCodec.poison_cause(text, require_identity=False) is not None:
        return "poison", {}
    try:
        envelope = EnvelopeCodec.decode(text)
    except BabelQueueError:
        return "missing_urn", {}
    return refusal(envelope), envelope


def refusal(envelope: dict[str, Any]) -> str | None:
    """The reason code of the first member that the SDK refuses in an envelope which is well otherwise."""
    for key, reason in CHECKS.items():
        if not EnvelopeCodec.accepts({**ENVELOPE, key: envelope.get(key)}):
            return "missing_meta" if key == "meta" and envelope.get("meta") is None else reason
    assert EnvelopeCodec.accepts(envelope)
    return None


def shown(value: Any) -> Any:
    """A value as a column can show it."""
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in value)
    return value


def saturated(value: int | None) -> int | None:
    return None if value is None else max(-(2**31), min(value, 2**31 - 1))


def assert_agrees(body: bytes, row: dict[str, Any]) -> None:
    reason, envelope = expected(body)
    assert row["error"] == reason
    if reason is None:
        assert_fields(body, row, envelope)


def assert_fields(body: bytes, row: dict[str, Any], envelope: dict[str, Any]) -> None:
    assert row["job"] == shown(envelope["job"])
    assert row["trace_id"] == shown(envelope["trace_id"])
    assert row["attempts"] == saturated(envelope["attempts"])
    assert row["data"].encode() in body
    assert json.loads(row["data"]) == envelope["data"]
    meta = envelope["meta"]
    for key in ("id", "queue", "lang"):
        assert row["meta"][key] == shown(meta.get(key))
    extra = {shown(key): value for key, value in meta.items() if key not in META and key not in FORBIDDEN}
    assert {key: repr(json.loads(text)) for key, text in row["meta"]["extra"]} == {
        key: repr(value) for key, value in extra.items()
    }
    block = envelope.get("dead_letter")
    assert (row["dead_letter"] is None) == (block is None)
    for key in ("reason", "error", "exception", "original_queue", "lang"):
        assert block is None or row["dead_letter"][key] == shown(block.get(key))
    assert block is None or row["dead_letter"]["attempts"] == saturated(block.get("attempts"))


@examples(200, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(body_texts(), body_texts(), damaged_bodies()), min_size=1, max_size=6))
def test_the_reason_and_the_fields_are_those_of_the_sdk(bodies: list[bytes]) -> None:
    batch = decode(array(*bodies))
    batch.validate(full=True)
    for body, row in zip(bodies, batch.to_pylist(), strict=True):
        assert_agrees(body, row)


@examples(100)
@given(st.binary(max_size=60))
def test_any_bytes_at_all(body: bytes) -> None:
    [row] = decode(array(body)).to_pylist()
    assert_agrees(body, row)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
identities = texts.filter(lambda text: text.strip(" \t\n\v\f\r"))


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
metas = st.builds(
    lambda created_at, ext, **members: {**members, "schema_version": 1, "created_at": created_at, "ext": ext},
    created_at=st.integers(0, 253_402_300_799_999),
    ext=st.dictionaries(texts, texts, max_size=2),
    id=texts,
    queue=texts,
    lang=texts,
)
envelopes = st.builds(
    lambda **members: {key: members[key] for key in ENVELOPE},
    job=identities,
    trace_id=identities,
    data=st.dictionaries(texts, json_values, max_size=3),
    meta=metas,
    attempts=st.integers(-(2**31), 2**31 - 1),
)


@examples(100)
@given(st.lists(envelopes, min_size=1, max_size=4))
def test_encode_writes_what_the_sdk_writes(originals: list[dict[str, Any]]) -> None:
    written = [EnvelopeCodec.encode(envelope).encode() for envelope in originals]
    decoded = decode(array(*written))
    assert decoded.column("error").null_count == len(written)
    again = encode(decoded.drop_columns(["error"])).to_pylist()
    for body, envelope in zip(again, originals, strict=True):
        trimmed = {key: envelope[key].strip(" \t\n\v\f\r") for key in ("job", "trace_id")}
        assert body == EnvelopeCodec.encode({**envelope, **trimmed}).encode()


def test_one_batch_holds_all_kinds_without_mixing_them_up() -> None:
    bodies = [compact({**ENVELOPE, "attempts": number}).encode() for number in range(5000)]
    bodies[::7] = [b"not json"] * len(bodies[::7])
    bodies[3::11] = [body[:-1] + b',"x":1}' for body in bodies[3::11]]
    rows = decode(pa.array(bodies, pa.large_binary())).to_pylist()
    for body, row in zip(bodies, rows, strict=True):
        assert_agrees(body, row)
