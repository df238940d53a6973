"""Sensitive fields as ciphertext, read and written by the SDK too."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from babelqueue import gdpr
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark import functions as bq
from babelqueue_spark.errors import OptionError
from babelqueue_spark.schemas.masking import mask
from babelqueue_spark.schemas.protection import protect, unprotect
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.schemas.sensitive import MARK, SensitiveFields
from tests.examples import examples

KEY = bytes(range(32))
URN = "urn:babel:orders:created"
TEXT = {"type": "string", MARK: True}
SCHEMA = {
    "type": "object",
    "properties": {
        "email": {"type": "string", MARK: "contact"},
        "profile": {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer", MARK: True}}},
        "addresses": {"type": "array", "items": {"type": "object", "properties": {"line": TEXT}}},
        "card": {"type": "object", MARK: True},
    },
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PAYLOADS = st.fixed_dictionaries(
    {"order_id": VALUES},
    optional={
        "email": st.text(),
        "profile": st.fixed_dictionaries(
            {}, optional={"name": st.text(), "age": st.integers(0, 120), "x": VALUES}
        ),
        "addresses": st.lists(
            st.fixed_dictionaries({"zip": VALUES}, optional={"line": st.text()}), max_size=3
        ),
        "card": st.dictionaries(st.text(), VALUES, max_size=3),
    },
)


class SdkCipher:
    """The cipher that the SDK's documentation shows."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def encrypt(self, plaintext: bytes) -> str:
        nonce = os.urandom(12)
        return b64encode(nonce + self._aead.encrypt(nonce, plaintext, None)).decode()

    def decrypt(self, ciphertext: str) -> bytes:
        raw = b64decode(ciphertext)
        return self._aead.decrypt(raw[:12], raw[12:], None)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> str:
    return key_file(tmp_path_factory.mktemp("keys") / "key", KEY)


def key_file(file: Path, key: bytes) -> str:
    file.write_text(b64encode(key).decode() + "\n")
    return f"file:{file}"


def fields_of(schema: Any) -> dict[str, SensitiveFields]:
    return Registry({URN: schema}).sensitive_fields()


def protected(data: str, schema: Any, key: str) -> Any:
    return protect(pa.array([URN]), pa.array([data]), fields_of(schema), key)[0].as_py()


def unprotected(data: str, schema: Any, key: str) -> Any:
    return unprotect(pa.array([URN]), pa.array([data]), fields_of(schema), key)[0].as_py()


@examples(100)
@given(PAYLOADS)
def test_what_we_protect_the_sdk_reads(key: str, data: dict[str, Any]) -> None:
    found = json.loads(protected(json.dumps(data), SCHEMA, key))
    assert "email" not in data or found["email"] != data["email"]
    gdpr.unprotect(found, SCHEMA, SdkCipher(KEY))
    assert found == data


@examples(100)
@given(PAYLOADS)
def test_what_the_sdk_protects_we_read(key: str, data: dict[str, Any]) -> None:
    sealed = json.loads(json.dumps(data))
    gdpr.protect(sealed, SCHEMA, SdkCipher(KEY))
    assert json.loads(unprotected(json.dumps(sealed), SCHEMA, key)) == data


def test_values_keep_their_text(key: str) -> None:
    data = '{"order_id":1.50,"card":{"limit":99.90,"n":123456789012345678901},"email":"\\u00e9<b>"}'
    sealed = protected(data, SCHEMA, key)
    assert '"order_id":1.50' in sealed
    assert "99.90" not in sealed
    assert unprotected(sealed, SCHEMA, key) == data


def test_fields_are_protected_once(key: str) -> None:
    once = protected('{"email":"a@b.example","card":{"number":"1"}}', SCHEMA, key)
    assert protected(once, SCHEMA, key) == once


@pytest.mark.parametrize(
    ("schema", "data", "sensitive"),
    [
        pytest.param(
            {"properties": {"rows": {"items": {"items": {"properties": {"name": TEXT}}}}}},
            {"rows": [[{"name": "Ann"}], [{"name": "Bob"}]]},
            ["Ann", "Bob"],
            id="arrays within arrays",
        ),
        pytest.param(
            {"properties": {"full.name": TEXT}}, {"full.name": "Ann"}, ["Ann"], id="a dot in a name"
        ),
        pytest.param(
            {"properties": {"who": {"oneOf": [{"type": "null"}, {"properties": {"name": TEXT}}]}}},
            {"who": {"name": "Ann"}},
            ["Ann"],
            id="a branch of oneOf",
        ),
        pytest.param(
            {
                "properties": {"who": {"$ref": "#/$defs/who"}},
                "$defs": {"who": {"properties": {"name": TEXT}}},
            },
            {"who": {"name": "Ann"}},
            ["Ann"],
            id="a reference",
        ),
        pytest.param(
            {
                "properties": {"tree": {"$ref": "#/definitions/node"}},
                "definitions": {
                    "node": {
                        "properties": {"name": TEXT, "children": {"items": {"$ref": "#/definitions/node"}}}
                    }
                },
            },
            {"tree": {"name": "Ann", "children": [{"name": "Bob", "children": [{"name": "Cem"}]}]}},
            ["Ann", "Bob", "Cem"],
            id="a reference to itself",
        ),
        pytest.param({"additionalProperties": TEXT}, {"a": "Ann", "b": "Bob"}, ["Ann", "Bob"], id="a map"),
        pytest.param(
            {"allOf": [{"properties": {"name": {}}}, {"additionalProperties": TEXT}]},
            {"name": "Ann"},
            ["Ann"],
            id="a member of one branch, another of the other",
        ),
        pytest.param(
            {"properties": {"pair": {"items": [TEXT, {"type": "integer"}], "additionalItems": TEXT}}},
            {"pair": ["Ann", 7, "Bob"]},
            ["Ann", "Bob"],
            id="elements by place",
        ),
    ],
)
def test_a_mark_counts_wherever_it_stands(key: str, schema: Any, data: Any, sensitive: list[str]) -> None:
    text = json.dumps(data, separators=(",", ":"))
    sealed = protected(text, schema, key)
    assert not [value for value in sensitive if value in sealed]
    assert "7" in sealed or "7" not in text
    assert unprotected(sealed, schema, key) == text
    masked = mask(pa.array([URN]), pa.array([text]), fields_of(schema))[0].as_py()
    assert masked.count('"***"') == len(sensitive)


def test_what_cannot_be_opened_is_null(key: str, tmp_path: Path) -> None:
    sealed = protected('{"email":"a@b.example"}', SCHEMA, key)
    other = key_file(tmp_path / "other", bytes(16))
    assert unprotected(sealed, SCHEMA, other) is None
    assert unprotected('{"email":"a@b.example"}', SCHEMA, key) is None


@pytest.mark.parametrize("data", ["[1]", "no JSON", '{"email":', "{" * 100_000])
def test_what_is_no_object_is_null(key: str, data: str) -> None:
    assert protected(data, SCHEMA, key) is None
    assert unprotected(data, SCHEMA, key) is None


def test_half_a_surrogate_pair_becomes_the_replacement_character(key: str) -> None:
    sealed = protected('{"email":"a\\ud800","note":"\\udc00"}', SCHEMA, key)
    assert json.loads(unprotected(sealed, SCHEMA, key)) == {"email": "a\ufffd", "note": "\ufffd"}


def test_urns_without_marks_keep_their_data(key: str) -> None:
    fields = Registry({URN: SCHEMA, "urn:plain": {"properties": {"email": {}}}}).sensitive_fields()
    assert list(fields) == [URN]
    jobs = pa.array(["urn:plain", "urn:unknown", None, URN])
    data = pa.array(['{ "email": "a" }', '{"email":"a"}', '{"email":"a"}', None])
    assert protect(jobs, data, fields, key).equals(data)


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({MARK: True, "properties": {}}, "mark its members"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "nothing is there"),
        ({"patternProperties": {"^e": TEXT}}, "not followed within 'patternProperties'"),
        (
            {"$defs": {"m": TEXT}, "properties": {"e": {"$dynamicRef": "#m"}}},
            "dynamicRef",
        ),
        (
            {"$defs": {"m": TEXT}, "properties": {"e": {"$recursiveRef": "#"}}},
            "recursiveRef",
        ),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "cannot be read"),
    ],
)
def test_a_schema_that_protects_nothing_is_an_error(schema: Any, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        fields_of(schema)


@pytest.mark.parametrize("content", ["c2hvcnQ=", "no base64!", ""])
def test_a_key_that_is_none_is_an_error_without_the_key(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(OptionError, match=r"not the base64 of 16, 24 or 32 bytes") as raised:
        protected("{}", SCHEMA, f"file:{tmp_path / 'key'}")
    assert not content or content not in str(raised.value)


def test_a_key_is_given_by_name_only() -> None:
    with pytest.raises(OptionError, match="by name only") as raised:
        protected("{}", SCHEMA, b64encode(KEY).decode())
    assert b64encode(KEY).decode() not in str(raised.value)


@pytest.mark.spark
def test_functions_protect_open_and_mask(spark: Any, key: str) -> None:
    catalog = Registry({URN: SCHEMA})
    data = '{"email":"a@b.example","order_id":1}'
    rows = spark.createDataFrame([(URN, data), (URN, "[]"), ("urn:other", data)], "job STRING, data STRING")
    rows = rows.withColumn("sealed", bq.protect("job", "data", catalog, key)).localCheckpoint()
    found = rows.select(
        "sealed",
        bq.unprotect("job", "sealed", catalog, key).alias("opened"),
        bq.mask("job", "data", catalog).alias("masked"),
    ).collect()
    assert "a@b.example" not in found[0].sealed
    assert [row.opened for row in found] == [data, None, data]
    assert [row.masked for row in found] == ['{"email":"***","order_id":1}', None, data]


@pytest.mark.spark
def test_no_key_is_in_a_plan(spark: Any) -> None:
    rows = spark.createDataFrame([(URN, "{}")], "job STRING, data STRING")
    with pytest.raises(OptionError, match="by name only") as raised:
        rows.select(bq.protect("job", "data", Registry({URN: SCHEMA}), "c2VjcmV0"))
    assert "c2VjcmV0" not in str(raised.value)
