"""The table of keywords in docs/catalog.md says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from babelqueue.schema import MapProvider, check

from babelqueue_spark.catalog import Catalog

PAGE = Path(__file__).parent.parent.parent / "docs/catalog.md"
URN = "urn:babel:orders:created"
STRUCT = {"type": "object", "properties": {"b": {"type": "string"}}}
PROBES: dict[str, tuple[Any, Any, str | None, str]] = {
    "type": ({"type": "string"}, 1, "not_a_string", "string"),
    "required": ({**STRUCT, "required": ["b"]}, {}, "missing_required", "struct<b:string>"),
    "properties": (STRUCT, {"b": 1}, "not_a_string", "struct<b:string>"),
    "additionalProperties": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"b": "x"},
        None,
        "map<string,bigint>",
    ),
    "items": ({"type": "array", "items": {"type": "integer"}}, ["x"], "not_an_integer", "array<bigint>"),
    "enum": ({"enum": ["x", "y"]}, "z", "not_in_enum", "string"),
    "const": ({"const": "x"}, "z", "wrong_const", "string"),
    "minLength": ({"type": "string", "minLength": 2}, "x", "below_min_length", "string"),
    "minimum": ({"type": "integer", "minimum": 2}, 1, "below_minimum", "bigint"),
    "format": ({"type": "string", "format": "date-time"}, "x", None, "timestamp"),
    "multipleOf": ({"type": "number", "multipleOf": 0.01}, 0.001, None, "decimal(38,2)"),
    "contentEncoding": ({"type": "string", "contentEncoding": "base64"}, "?", None, "binary"),
    "$ref": ({"$ref": "#/definitions/n"}, "x", None, "bigint"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "x", None, "bigint"),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", None, "bigint"),
}


def table() -> dict[str, tuple[str, str]]:
    section = PAGE.read_text().split("\n## Keywords\n")[1].split("\n## ")[0]
    return {
        name: (verdict, kind)
        for name, verdict, kind in re.findall(r"^\| `(.+?)` \| (.*?) \| (.*?) \|$", section, re.M)
    }


def test_each_keyword_of_the_page_is_probed() -> None:
    assert list(table()) == list(PROBES)


@pytest.mark.parametrize("keyword", PROBES)
def test_a_keyword_does_what_the_page_says(keyword: str) -> None:
    schema, value, reason, kind = PROBES[keyword]
    root = {"type": "object", "properties": {"a": schema}, "definitions": {"n": {"type": "integer"}}}
    catalog = Catalog({URN: root})
    found = catalog.violation(URN, json.dumps({"a": value}))
    assert found == check(MapProvider({URN: root}), URN, {"a": value})
    assert (found or "").rpartition(": ")[2] == (reason or "")
    assert catalog.data_type(URN)["a"].dataType.simpleString() == kind  # type: ignore[index]
    verdict, said = table()[keyword]
    if keyword not in ("properties", "items", "additionalProperties"):  # whose schemas have the reason
        assert f"`{reason}`" in verdict if reason else verdict == "ignored"
    assert f"`{kind}`" in said or "no effect" in said or kind.startswith("struct")
