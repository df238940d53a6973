"""Verdicts on payloads on one core, against the published SDK."""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import pyarrow as pa
from babelqueue.schema import MapProvider, check

from babelqueue_spark.catalog import Catalog
from bench.codec import SLOW_BODIES, in_batches, speeds
from bench.table import Row, row, show

PAYLOADS = 100_000
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
OPEN = {**SCHEMA, "properties": {**SCHEMA["properties"], "n": {"enum": [1, 2.5, True]}}}  # type: ignore[dict-item]
"""A schema that no decoder stands for: each payload takes the slow way."""


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
            "numbers in an enum": (PAYLOADS, judging(OPEN, texts)),
            "SDK": (
                SLOW_BODIES,
                lambda: [check(provider, URN, json.loads(text)) for text in texts[:SLOW_BODIES]],
            ),
            "SDK, parsed": (SLOW_BODIES, lambda: [check(provider, URN, data) for data in parsed]),
        }
    )
    against = [
        ("valid", "SDK", "SDK check, and json.loads", 3.0),
        ("valid", "SDK, parsed", "SDK check of what is parsed", None),
        ("1 % with a violation", "valid", "all valid", None),
        ("all with a violation", "valid", "all valid", None),
        ("numbers in an enum", "valid", "all valid", None),
    ]
    return [
        row(f"violations, 400-byte payloads, {ours}", rates[ours], name, rates[theirs], floor)
        for ours, theirs, name, floor in against
    ]


def judging(schema: Any, texts: list[str]) -> Any:
    """The verdicts on all payloads, in batches."""
    catalog = Catalog({URN: schema})
    jobs = pa.array([URN] * PAYLOADS)
    batch = pa.RecordBatch.from_pydict({"job": jobs, "data": pa.array(texts)})
    return in_batches(lambda part: catalog.violations(part.column("job"), part.column("data")), batch)


if __name__ == "__main__":
    sys.exit(show(rows()))
