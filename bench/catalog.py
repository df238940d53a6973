"""Verdicts on payloads on one core, against the published SDK."""

from __future__ import annotations

import json
import sys
import uuid
from functools import partial
from typing import Any

import pyarrow as pa
from babelqueue.schema import MapProvider, check

from babelqueue_spark.catalog import Catalog
from bench.codec import SLOW_BODIES, in_batches, speeds
from bench.table import Row, row, show

PAYLOADS = 100_000
WORK = "violations, 400-byte payloads"
URN = "urn:babel:orders:created"
SCHEMA = {
    "type": "object",
    "required": ["order_id", "amount", "customer"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "amount": {"type": "number", "minimum": 0},
        "currency": {"enum": ["USD", "EUR", "TRY"]},
        "customer": {"type": "string", "minLength": 36},
        "note": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["sku"],
                "properties": {"sku": {"type": "string"}, "n": {"type": "integer", "minimum": 1}},
            },
        },
    },
    "additionalProperties": False,
}
NUMBERS = {**SCHEMA, "properties": {**SCHEMA["properties"], "n": {"enum": [1, 2.5, True]}}}  # type: ignore[dict-item]
OPEN = {**SCHEMA, "properties": {**SCHEMA["properties"], "n": {"const": True}}}  # type: ignore[dict-item]
"""A schema that no decoder stands for: each payload takes the slow way."""
WANTED = 200_000
"""Payloads a second and core."""


def payload(number: int) -> str:
    """A payload of about 400 bytes."""
    data = {
        "order_id": number + 1,
        "amount": 99.9,
        "currency": "EUR",
        "customer": str(uuid.uuid4()),
        "note": "x" * 210,
        "items": [{"sku": f"a{number}", "n": 2}] * 3,
    }
    return json.dumps(data, separators=(",", ":"))


def rows() -> list[Row]:
    """Verdicts on payloads that are valid, that have violations, and of a schema without a decoder."""
    texts = [payload(number) for number in range(PAYLOADS)]
    bad = [
        text.replace('"n":2', '"n":"2"') if number % 100 == 0 else text for number, text in enumerate(texts)
    ]
    parsed = [json.loads(text) for text in texts[:SLOW_BODIES]]
    provider = MapProvider({URN: SCHEMA})
    rates = speeds(
        {
            "valid": (PAYLOADS, judging(SCHEMA, texts)),
            "1 % with a violation": (PAYLOADS, judging(SCHEMA, bad)),
            "all with a violation": (
                PAYLOADS,
                judging(SCHEMA, [text.replace('"n":2', '"n":0') for text in texts]),
            ),
            "numbers in an enum": (PAYLOADS, judging(NUMBERS, texts)),
            "no decoder": (PAYLOADS, judging(OPEN, texts)),
            "SDK": (
                SLOW_BODIES,
                lambda: [check(provider, URN, json.loads(text)) for text in texts[:SLOW_BODIES]],
            ),
            "SDK, parsed": (SLOW_BODIES, lambda: [check(provider, URN, data) for data in parsed]),
        }
    )
    valid = partial(row, f"{WORK}, valid", rates["valid"])
    usual = ["valid", "1 % with a violation", "numbers in an enum"]
    rare = ["all with a violation", "no decoder"]
    return [
        valid("SDK check, and json.loads", rates["SDK"], 3.0),
        valid("SDK check of what is parsed", rates["SDK, parsed"], None),
        *(row(f"{WORK}, {each}", rates[each], "what is wanted", WANTED, 1.0) for each in usual),
        *(row(f"{WORK}, {each}", rates[each], "all valid", rates["valid"], None) for each in rare),
    ]


def judging(schema: Any, texts: list[str]) -> Any:
    """The verdicts on all payloads, in batches."""
    catalog = Catalog({URN: schema})
    jobs = pa.array([URN] * PAYLOADS)
    batch = pa.RecordBatch.from_pydict({"job": jobs, "data": pa.array(texts)})
    return in_batches(lambda part: catalog.violations(part.column("job"), part.column("data")), batch)


if __name__ == "__main__":
    sys.exit(show(rows()))
