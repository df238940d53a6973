"""JSON text into typed columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.envelope import decode
from babelqueue_spark.envelope.typed import typed
from tests.envelope.bodies import META, body
from tests.envelope.test_decode import NASTY
from tests.examples import examples

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
        ("0", pa.decimal128(2, 2), Decimal("0.00")),
        ("0.995", pa.decimal128(2, 2), None),
        ("1767323045000", pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02T03:04:05Z"', pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02T05:04:05+02:00"', pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02T03:04:05"', pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
        ('"2026-01-02t03:04:05z"', pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02 03:04:05.000000999Z"', pa.timestamp("us", "UTC"), MOMENT),
        ('"2026-01-02"', pa.timestamp("us", "UTC"), MOMENT.replace(hour=0, minute=0, second=0)),
        ('"2026-12-31T23:59:60Z"', pa.timestamp("us", "UTC"), None),
        ('"soon"', pa.timestamp("us", "UTC"), None),
        ('"0001-01-01T00:00:00+23:59"', pa.timestamp("us", "UTC"), None),
        ('"9999-12-31T23:59:59-01:00"', pa.timestamp("us", "UTC"), None),
        ("9223372036854775807", pa.timestamp("us", "UTC"), None),
        ('"2026-01-02"', pa.date32(), date(2026, 1, 2)),
        ('"AQI="', pa.binary(), b"\x01\x02"),
        ('"?"', pa.binary(), None),
        ("[1,null,2.5]", pa.list_(pa.int32()), [1, None, None]),
        ("{}", pa.list_(pa.int32()), None),
        ('{"a":1,"b":"x"}', pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)]),
        (None, pa.int32(), None),
        (r'"a\ud800b\udc00"', pa.string(), "a\ufffdb\ufffd"),
        (r'"\ud83d\ude00 \ud83d\ud83d\ude00"', pa.string(), "\U0001f600 \ufffd\U0001f600"),
        (r'"\\ud800"', pa.string(), r"\ud800"),
        (r'["\udfff"]', pa.list_(pa.string()), ["\ufffd"]),
        (r'{"\ud800":"\udc00"}', pa.map_(pa.string(), pa.string()), [("\ufffd", "\ufffd")]),
        (r'{"a":"\ud800"}', pa.struct([("a", pa.string())]), {"a": "\ufffd"}),
    ],
)
def test_values(text: str | None, wanted: pa.DataType, expected: Any) -> None:
    assert one(text, wanted) == expected


@pytest.mark.parametrize("scale", [0, 2])
@pytest.mark.parametrize("digits", [28, 29, 38])
@pytest.mark.parametrize("quote", ["", '"'])
def test_decimals_keep_all_of_their_digits(digits: int, scale: int, quote: str) -> None:
    text = f"{'7' * (digits - scale)}.{'7' * scale}".rstrip(".")
    wanted = pa.decimal128(38, scale)
    assert one(quote + text + quote, wanted) == Decimal(text)


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize(
    ("scale", "text"), [(0, "7" * 39), (0, "9" * 38 + ".5"), (2, "7" * 37), (2, "9" * 36 + ".995")]
)
def test_decimals_too_large_for_their_type_are_null(scale: int, text: str, quote: str) -> None:
    assert one(quote + text + quote, pa.decimal128(38, scale)) is None


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


TYPES = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_(), pa.decimal128(10, 2)),
    *(
        pa.timestamp("us", "UTC"),
        pa.date32(),
        pa.binary(),
        pa.list_(pa.int32()),
        pa.map_(pa.string(), pa.int32()),
    ),
    pa.struct([("a", pa.int32()), ("b", pa.string())]),
]
VALUES = [
    *(
        "1",
        "-3",
        "2.5",
        "1.005",
        "1e400",
        "99999999999999999999",
        "1749132727000",
        "null",
        "true",
        "[]",
        "{}",
    ),
    *('"x"', '"1.5"', '"\\ud800"', '"AQI="', '"2026-01-02T03:04:05Z"', '[1,"a",null]', '{"a":1,"b":"q"}'),
]


@examples(300)
@given(
    st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
    st.lists(st.lists(st.one_of(st.none(), st.sampled_from(VALUES)), min_size=3, max_size=3), max_size=4),
)
def test_what_fits_and_what_does_not_come_out_alike(
    kinds: list[pa.DataType], rows: list[list[str | None]]
) -> None:
    """A misfit beside it sends a row another way, and must not change it."""
    wanted = pa.struct([(f"k{number}", kind) for number, kind in enumerate(kinds)])
    odd = pa.struct([*wanted, ("odd", pa.int32())])
    members = [[f'"k{n}":{text}' for n, text in enumerate(row) if text is not None] for row in rows]
    fitting = typed(pa.array(["{" + ",".join(row) + "}" for row in members], pa.string()), wanted)
    misfits = typed(
        pa.array(["{" + ",".join([*row, '"odd":"x"']) + "}" for row in members], pa.string()), odd
    )
    for name in (field.name for field in wanted):
        assert pc.struct_field(misfits, name) == pc.struct_field(fitting, name)


PAYLOAD = pa.struct([*((f"k{number}", kind) for number, kind in enumerate(TYPES)), ("note", pa.string())])
PAYLOADS = [
    {},
    {f"k{number}": value for number, value in enumerate([1, 2, 0.5, 1e300, "größe", True, "1.5"])},
    {"k0": 300, "k4": 1.5, "k12": {"a": 1, "b": [{}]}, "note": 'a "quote", \\ and \u2028'},
    {"k10": [1, None, "x"], "k11": {"a": 1}, "k12": None, "more": [[], {"k0": 7}], "note": "HALF"},
]


CUTS = [b"", b'"', b"\\", b"{", b"}", b",", b"1", b"e9", b" ", b"\xff", b"\x00", b"null", b'"k0":1,']


def mutated(random: Random) -> bytes:
    """A canonical body, two bytes of which may be others."""
    one = body(data=random.choice(PAYLOADS)).replace(b"HALF", rb"\ud800")
    at = random.randrange(len(one))
    return one[:at] + random.choice(CUTS) + one[at + random.randrange(3) :]


@pytest.mark.parametrize("seed", range(100))
def test_one_parse_gives_what_two_give(seed: int) -> None:
    """Whether a payload is JSON, and what its values are, come from one parse where the body is canonical."""
    random = Random(seed)
    nasty = random.sample([nasty for nasty, _ in NASTY.values()], 3)
    array = pa.array([*nasty, *(mutated(random) for _ in range(60))], pa.binary())
    texts, once = decode(array), decode(array, data_type=PAYLOAD)
    assert once.column("data") == typed(texts.column("data"), PAYLOAD)
    assert once.drop_columns("data") == texts.drop_columns("data")


@pytest.mark.parametrize("seed", range(50))
def test_long_bodies_are_read_as_beside_a_short_one(seed: int) -> None:
    """Where all are long, the keys of the frame are looked for at both ends only."""
    random = Random(seed)
    names = ["orders", "o" * 150, 'or":"ders', "größe" * 30]
    long = []
    for _ in range(60):
        data = {**random.choice(PAYLOADS), "text": 'a "job":"x" ' * 60, "deep": [{"trace_id": {}}] * 3}
        one = body(job=random.choice(names), meta={**META, "queue": random.choice(names)}, data=data)
        at = random.choice([random.randrange(200), len(one) - random.randrange(1, 330)])
        long.append(one[:at] + random.choice(CUTS) + one[at + random.randrange(3) :])
    assert decode(pa.array(long, pa.binary())) == decode(pa.array([*long, body()], pa.binary())).slice(0, 60)
