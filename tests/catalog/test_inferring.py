"""Schemas that are inferred, compared, and drifted from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from babelqueue.schema import MapProvider, check
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.jobs.catalog import anywhere, unknown_members
from babelqueue_spark.schemas.compatibility import breaks
from babelqueue_spark.schemas.inferring import MOST_MEMBERS, Shape
from tests.catalog.test_verdicts import PAYLOADS
from tests.examples import examples

URN = "urn:babel:orders:created"


def shape_of(*values: Any) -> Shape:
    shape = Shape()
    for value in values:
        shape.add(value)
    return shape


@examples(300)
@given(st.lists(PAYLOADS, min_size=1, max_size=6))
def test_what_it_was_inferred_from_is_valid(payloads: list[Any]) -> None:
    schema = shape_of(*payloads).schema()
    catalog = Catalog({URN: schema})
    catalog.data_type(URN)
    for payload in payloads:
        assert check(MapProvider({URN: schema}), URN, payload) is None
        assert catalog.violation(URN, json.dumps(payload)) is None
        assert list(unknown_members(schema, payload)) == []


@examples(200)
@given(st.lists(PAYLOADS, max_size=4), st.lists(PAYLOADS, max_size=4))
def test_merged_shapes_are_those_of_all_values(first: list[Any], second: list[Any]) -> None:
    merged = shape_of(*first)
    merged.merge(shape_of(*second))
    assert merged.schema() == shape_of(*first, *second).schema()


def test_types_formats_and_what_is_required() -> None:
    payloads = [
        {"id": 1, "at": "2026-01-31T12:00:00Z", "day": "2026-01-31", "note": None, "tags": [{"a": 1}]},
        {"id": 2.5, "at": "2026-02-01T12:00:00.5+01:00", "day": "2026-02-31", "note": "x", "tags": []},
        {"id": 3, "at": "2026-02-01T12:00:00z", "day": "-", "tags": [{"a": "b"}, {}]},
    ]
    assert shape_of(*payloads).schema() == {
        "type": "object",
        "required": ["id", "at", "day", "tags"],
        "properties": {
            "id": {"type": "number", "$comment": "in 3 of 3"},
            "at": {"type": "string", "format": "date-time", "$comment": "in 3 of 3"},
            "day": {"type": "string", "$comment": "in 3 of 3"},
            "note": {"type": ["string", "null"], "$comment": "in 2 of 3"},
            "tags": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": [],
                    "properties": {"a": {"type": ["integer", "string"], "$comment": "in 2 of 3"}},
                },
                "$comment": "in 3 of 3",
            },
        },
    }


def test_many_names_are_a_map() -> None:
    shape = shape_of(*({"counts": {f"sku-{n}": n}} for n in range(MOST_MEMBERS + 1)))
    counts = shape.schema()["properties"]["counts"]
    assert counts["additionalProperties"] == {"type": "integer"}
    assert "properties" not in counts
    assert Catalog({URN: shape.schema()}).data_type(URN).simpleString() == "struct<counts:map<string,bigint>>"


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (properties(a={"type": "string"}), properties(a={"type": "string"}, b={"type": "string"}), []),
        (properties(a={}), {**properties(a={}), "required": ["a"]}, ['property "a" is now required']),
        (
            properties(a={"type": "string"}),
            properties(a={"type": "integer"}),
            ['a: type changed "string" → "integer"'],
        ),
        (
            properties(a={"enum": ["x", 1, 1.5, None, True]}),
            properties(a={"enum": ["y"]}),
            [f"a: enum value {value} removed" for value in ("1", "1.5", "<nil>", "true", "x")],
        ),
        (properties(a={"enum": ["x"]}), properties(a={"enum": ["x", "y"]}), []),
        (
            properties(a={"type": "string"}),
            properties(a={"type": "string", "enum": ["x"]}),
            ["a: enum constraint added where any value was allowed"],
        ),
        (
            properties(a={"type": "integer", "minimum": 0}),
            properties(a={"type": "integer", "minimum": 5}),
            ["a: minimum tightened"],
        ),
        (
            properties(a={"type": "string"}),
            properties(a={"type": "string", "minLength": 3}),
            ["a: minLength tightened"],
        ),
        (properties(), {**properties(), **CLOSED}, ["additionalProperties tightened to false"]),
        (
            {**properties(a={}, b={}), **CLOSED},
            {**properties(a={}), **CLOSED},
            ["b: property removed"],
        ),
        (
            properties(a={"type": "array", "items": properties(b={})}),
            properties(a={"type": "array", "items": {"type": "object"}}),
            ["a[].b: property removed"],
        ),
        (
            properties(a={"type": "array"}),
            properties(a={"type": "array", "items": {"type": "string", "minLength": 1}}),
            ["a[]: minLength tightened", 'a[]: type "string" added where any value was allowed'],
        ),
        (properties(a={"type": "array"}), properties(a={"type": "array", "items": {}}), []),
        (
            properties(a={"type": "array", "items": properties(b={"type": "string"})}),
            properties(a={"type": "array", "items": properties(b={"type": "number"})}),
            ['a[].b: type changed "string" → "number"'],
        ),
        (properties(a={}), properties(a={"type": "string"}), ['a: type "string" added where any value was allowed']),
        (properties(a={"const": 1}), properties(a={"const": 2}), ["a: const 2 set"]),
        (properties(a={"enum": ["x"]}), properties(a={"type": "string", "enum": ["x"]}), []),
        (properties(a={"enum": [1e21, 1e-7, 1000000]}), properties(a={"enum": []}), [
            "a: enum value 1e+06 removed", "a: enum value 1e+21 removed", "a: enum value 1e-07 removed",
        ]),
    ],
)  # fmt: skip
def test_breaking_changes_are_worded_as_the_registrys_tool_does(old: Any, new: Any, found: list[str]) -> None:
    assert breaks(old, new) == found


def test_members_beyond_a_schema() -> None:
    schema = properties(
        a={}, b={"type": "array", "items": properties(c={})}, m={"additionalProperties": {"type": "string"}}
    )
    value = {"a": {"x": 1}, "b": [{"c": 1, "d": 2}, {"d": 3}], "m": {"n": "o"}, "e": 1}
    assert list(unknown_members(schema, value)) == ["b[].d", "b[].d", "e"]
    assert anywhere("b[10].c[2]: not_a_string") == "b[].c[]: not_a_string"
