"""Verdicts on payloads are those of the SDK, word for word."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from babelqueue.schema import MapProvider, check
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from babelqueue_spark.catalog import Catalog
from tests.envelope.conformance import manifest
from tests.examples import examples

URN = "urn:babel:orders:created"
ORDER = {
    "type": "object",
    "required": ["order_id", "amount"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "amount": {"type": "number", "minimum": 0},
        "currency": {"enum": ["USD", "EUR", "TRY"]},
        "priority": {"type": "integer", "enum": [1, 2, 3.0]},
        "state": {"enum": ["new", 0, 1.5, True, None, [1]]},
        "live": {"const": True},
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
    "additionalProperties": False,
}

KEYS = st.sampled_from(["a", "b", "ä", "a.b", "", "a\\", '"', "\x00"])
TEXTS = st.sampled_from(["", "a", "ab", "größe", "\U0001f600", "1", "null"])
NUMBERS = st.sampled_from([0, 1, -1, 2, 1.0, 0.5, -0.0, 1.5, 2**53 + 1, 2**63, -(2**63), 10**30, 1e300])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
PAYLOADS = st.dictionaries(KEYS, VALUES, max_size=5)


def _schemas(inner: Any) -> Any:
    """Schemas of the SDK's keywords, sensible or not, beside keywords that it ignores."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                [
                    "object",
                    "array",
                    "string",
                    "integer",
                    "number",
                    "boolean",
                    "null",
                    "date",
                    ["string", "null"],
                    7,
                ]
            ),
            "required": st.lists(KEYS | st.just(3), max_size=3) | st.just("a"),
            "properties": st.dictionaries(KEYS, inner | st.booleans(), max_size=4),
            "additionalProperties": st.booleans() | inner,
            "items": inner | st.lists(inner, max_size=2),
            "enum": st.lists(VALUES, max_size=4),
            "const": VALUES,
            "minLength": st.sampled_from([-1, 0, 1, 2, 2.5, True]),
            "minimum": NUMBERS | st.booleans() | st.just("1"),
            "maximum": st.just(0),
            "format": st.just("date-time"),
            "$ref": st.just("#/nowhere"),
            "oneOf": st.just([{"type": "null"}]),
        },
    )


OBJECTS = st.recursive(st.just({}), _schemas, max_leaves=6).map(lambda found: {"type": "object", **found})
"""Schemas whose root mostly is an object."""


def ours(schema: Any, payload: Any) -> str | None:
    texts = pa.array([payload if isinstance(payload, str) else json.dumps(payload)])
    [found] = Catalog({URN: schema}).violations(pa.array([URN]), texts).to_pylist()
    return found


@examples(1500, suppress_health_check=[HealthCheck.too_slow])
@given(schema=OBJECTS, payloads=st.lists(PAYLOADS, min_size=1, max_size=4))
def test_the_first_violation_is_the_sdks(schema: Any, payloads: list[Any]) -> None:
    provider = MapProvider({URN: schema})
    texts = [json.dumps(payload, ensure_ascii=False) for payload in payloads]
    found = Catalog({URN: schema}).violations(pa.array([URN] * len(texts)), pa.array(texts))
    assert found.to_pylist() == [check(provider, URN, json.loads(text)) for text in texts]


@examples(500)
@given(payload=st.fixed_dictionaries(
    {},
    optional={
        "order_id": NUMBERS | TEXTS,
        "amount": NUMBERS | st.none(),
        "currency": st.sampled_from(["USD", "EUR", "usd", 1]),
        "priority": st.sampled_from([1, 1.0, True, 2, 3, 3.0, 4, "1"]),
        "state": st.sampled_from(["new", "old", 0, 0.0, False, True, 1, 1.5, None, [1], [1.0], [True], {}]),
        "live": st.sampled_from([True, 1, False]),
        "items": st.lists(st.dictionaries(st.sampled_from(["sku", "n"]), SCALARS), max_size=3),
        "more": SCALARS,
    },
))  # fmt: skip
def test_orders_are_judged_as_the_sdk_judges_them(payload: Any) -> None:
    assert ours(ORDER, payload) == check(MapProvider({URN: ORDER}), URN, payload)


@pytest.mark.parametrize("section", ["payload_schema", "payload_schema_unicode"])
def test_the_conformance_suite(section: str) -> None:
    part = manifest()[section]
    assert part["cases"]
    for case in part["cases"]:
        assert (ours(part["schema"], case["data"]) is None) == case["valid"], case


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ('{"order_id":1,"amount":2}', None),
        ('{"order_id":1.0,"amount":2}', None),
        ('{"order_id":1,"order_id":"x","amount":2}', "order_id: not_an_integer"),
        ('{"order_id":"x","order_id":1,"amount":2}', None),
        ('{"order_id":1,"amount":1e999}', None),
        ('{"order_id":1,"amount":-1e999}', "amount: below_minimum"),
        ('{"order_id":-' + "9" * 5000 + ',"amount":2}', "order_id: not_an_integer"),
        ('{"order_id":1,"amount":' + "9" * 400 + "}", None),
        ('{"order_id":1,"amount":2,"currency":"\\u0055SD"}', None),
        ('{"order_id":1,"amount":2,"items":[{},{"sku":1}]}', "items[1].sku: not_a_string"),
        ('{"order_id":1,"amount":2,"items":[{"sku":"\\ud800"}]}', None),
        ("[1]", "<root>: not_an_object"),
        ("{", "<root>: not_json"),
        ("[" * 100_000, "<root>: not_json"),
    ],
)
def test_unusual_texts(text: str, violation: str | None) -> None:
    assert ours(ORDER, text) == violation


@pytest.mark.parametrize("share", [1, 2, 10])
def test_the_share_of_violations_changes_no_verdict(share: int) -> None:
    schema = {key: each for key, each in ORDER["properties"].items() if key != "live"}  # type: ignore[attr-defined]
    payloads = [{"order_id": "1" if number % share == 0 else 1, "state": 1.5} for number in range(1000)]
    catalog = Catalog({URN: {**ORDER, "properties": schema, "required": []}})
    found = catalog.violations(pa.array([URN] * 1000), pa.array(map(json.dumps, payloads)))
    assert found.to_pylist() == [
        "order_id: not_an_integer" if number % share == 0 else None for number in range(1000)
    ]


def test_rows_of_many_urns_keep_their_places() -> None:
    catalog = Catalog({"urn:a": ORDER, "urn:b": {"type": "object", "required": ["b"]}})
    jobs = pa.array(["urn:a", "urn:b", None, "urn:c", "urn:b", "urn:a", "urn:a"])
    data = pa.array(['{"order_id":1,"amount":1}', "{}", "{}", "{}", '{"b":1}', "{}", None])
    assert catalog.violations(jobs, data).to_pylist() == [
        *(None, "b: missing_required", None, None, None, "order_id: missing_required", None)
    ]
