"""JSON text into typed columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.envelope.typed import typed

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def one(text: str | None, wanted: pa.DataType) -> Any:
    return typed(pa.array([text], pa.string()), wanted)[0].as_py()


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("1", pa.int64(), 1),
        ("-0", pa.int32(), 0),
        ("128", pa.int8(), None),
        ("1.0", pa.int64(), None),
        ('"1"', pa.int64(), None),
        ("9223372036854775808", pa.int64(), None),
        ("1.50", pa.float64(), 1.5),
        ("1e400", pa.float64(), float("inf")),
        ("true", pa.float64(), None),
        ("true", pa.bool_(), True),
        ("1", pa.bool_(), None),
        ('"gr\\u00f6\\u00dfe"', pa.string(), "größe"),
        ("1.50", pa.string(), "1.50"),
        ("{}", pa.string(), "{}"),
        ("null", pa.string(), None),
        ("99.90", pa.decimal128(12, 2), Decimal("99.90")),
        ('"99.905"', pa.decimal128(12, 2), Decimal("99.91")),
        ("12345678901234567890.12", pa.decimal128(38, 2), Decimal("12345678901234567890.12")),
        ("12345", pa.decimal128(4, 0), None),
        ("999.99", pa.decimal128(4, 1), None),
        ("0.001", pa.decimal128(4, 1), Decimal("0.0")),
        ("1e999999", pa.decimal128(4, 1), None),
        ("1767323045000", pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02T03:04:05Z"', pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02T05:04:05+02:00"', pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02T03:04:05"', pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
        ('"soon"', pa.timestamp("us", "UTC"), None),
        ("9223372036854775807", pa.timestamp("us", "UTC"), None),
        ('"2026-01-02"', pa.date32(), date(2026, 1, 2)),
        ('"AQI="', pa.binary(), b"\x01\x02"),
        ('"?"', pa.binary(), None),
        ("[1,null,2.5]", pa.list_(pa.int32()), [1, None, None]),
        ("{}", pa.list_(pa.int32()), None),
        ('{"a":1,"b":"x"}', pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)]),
        (None, pa.int32(), None),
    ],
)
def test_values(text: str | None, wanted: pa.DataType, expected: Any) -> None:
    assert one(text, wanted) == expected


def test_nested_columns() -> None:
    item = pa.struct([("sku", pa.string()), ("n", pa.int32())])
    wanted = pa.struct([("id", pa.int64()), ("items", pa.list_(item)), ("with space", pa.bool_())])
    texts = [
        '{"id":1,"items":[{"sku":"a","n":1},{"sku":"b"}],"with space":true,"more":[]}',
        '{"items":[5,null],"id":"x"}',
        "[]",
        None,
        '{"id":7,"items":[]}',
    ]
    assert typed(pa.array(texts, pa.string()), wanted).to_pylist() == [
        {"id": 1, "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": None}], "with space": True},
        {"id": None, "items": [None, None], "with space": None},
        None,
        None,
        {"id": 7, "items": [], "with space": None},
    ]
