"""The Spark type of what a JSON Schema describes, keyword by keyword."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.envelope.typed import typed

URN = "urn:babel:orders:created"


def of(property_schema: Any, **root: Any) -> str:
    """The type of a property with a schema."""
    catalog = Catalog({URN: {"type": "object", "properties": {"a": property_schema}, **root}})
    return catalog.data_type(URN)["a"].dataType.simpleString()  # type: ignore[index]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "null"}, "string"),
        ({}, "string"),
        (True, "string"),
        ({"type": ["string", "null"]}, "string"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["integer", "string"]}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": ["string", "null"], "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": "number", "multipleOf": 0.01}, "decimal(38,2)"),
        ({"type": "number", "multipleOf": 1e-10}, "decimal(38,10)"),
        ({"type": "number", "multipleOf": 0.25}, "decimal(38,2)"),
        ({"type": "number", "multipleOf": 10}, "decimal(38,0)"),
        ({"type": "number", "multipleOf": 1e-40}, "double"),
        ({"type": "number", "multipleOf": 0}, "double"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2]}, "bigint"),
        ({"enum": [1, 2.5]}, "double"),
        ({"enum": [1, "a"]}, "string"),
        ({"const": True}, "boolean"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "bigint"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "double"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "array"}, "string"),
        ({"type": "array", "items": [{"type": "integer"}]}, "string"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"properties": {"b": {"type": "date"}}}, "struct<b:string>"),
        ({"type": "object", "properties": {"b": {}, "B": {}}}, "string"),
        ({"$ref": "#/definitions/money"}, "decimal(38,2)"),
        ({"$ref": "#/definitions/tree"}, "struct<left:string,n:bigint>"),
    ],
)
def test_a_property(schema: Any, kind: str) -> None:
    definitions = {
        "money": {"type": "number", "multipleOf": 0.01},
        "tree": {
            "type": "object",
            "properties": {"left": {"$ref": "#/definitions/tree"}, "n": {"type": "integer"}},
        },
    }
    assert of(schema, definitions=definitions) == kind


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({}, "string"),
        ({"type": "object"}, "string"),
        ({"type": "array", "items": {"type": "string"}}, "string"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "map<string,string>"),
    ],
)
def test_a_payload_without_properties(schema: Any, kind: str) -> None:
    assert Catalog({URN: schema}).data_type(URN).simpleString() == kind


def test_what_has_no_fixed_type_may_be_variant() -> None:
    schema = {
        "type": "object",
        "properties": {
            "any": {},
            "name": {"type": "string"},
            "of": {"oneOf": [{"type": "string"}, {"type": "object"}]},
            "list": {"type": "array"},
            "rows": {"type": "array", "items": {"type": "object", "properties": {"n": True}}},
            "by": {"type": "object", "additionalProperties": {"type": ["integer", "string"]}},
        },
    }
    catalog = Catalog({URN: schema, "urn:any": {}})
    assert catalog.data_type(URN, variant=True).simpleString() == (
        "struct<any:variant,name:string,of:variant,list:variant,rows:array<struct<n:variant>>,by:map<string,variant>>"
    )
    assert catalog.data_type("urn:any", variant=True).simpleString() == "variant"


def test_payloads_are_read_into_the_type() -> None:
    schema = {
        "type": "object",
        "properties": {
            "at": {"type": "string", "format": "date-time"},
            "amount": {"type": "number", "multipleOf": 0.01},
            "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {"oneOf": [{"type": "string"}, {"type": "object"}]},
        },
    }
    texts = [
        '{"at":"2026-01-31T12:00:00+01:00","amount":99.9,"tags":{"a":1},"any":{"x": [1]}}',
        '{"at":null}',
    ]
    [found, empty] = typed(pa.array(texts), Catalog({URN: schema}).arrow_type(URN)).to_pylist()
    assert found["at"].isoformat() == "2026-01-31T11:00:00+00:00"
    assert str(found["amount"]) == "99.90"
    assert (found["tags"], found["any"]) == ([("a", 1)], '{"x": [1]}')
    assert set(empty.values()) == {None}
