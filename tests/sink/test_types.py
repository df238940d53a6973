"""Types of `data`: what each is written as, what it comes back as, and what is refused."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import CharType, StringType, StructField, StructType
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.payloads import check_data, texts_of_payloads
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.errors import BabelQueueError, OptionError

pytestmark = pytest.mark.spark

TYPES = {
    "BOOLEAN": ("true", "true", True),
    "TINYINT": ("-7Y", "-7", -7),
    "SMALLINT": ("7S", "7", 7),
    "INT": ("42", "42", 42),
    "BIGINT": ("9007199254740993L", "9007199254740993", 9007199254740993),
    "FLOAT": ("1.5F", "1.5", 1.5),
    "DOUBLE": ("0.1D", "0.1", 0.1),
    "DECIMAL(10,2)": ("9.90BD", '"9.90"', Decimal("9.90")),
    "STRING": ("'Zoë'", '"Zoë"', "Zoë"),
    "BINARY": ("X'00FF'", f'"{base64.b64encode(bytes([0, 255])).decode()}"', bytes([0, 255])),
    "DATE": ("DATE'2026-01-31'", '"2026-01-31"', date(2026, 1, 31)),
    "TIMESTAMP": (
        "TIMESTAMP'2026-01-31 12:00:00+01:00'",
        '"2026-01-31T11:00:00Z"',
        None,
    ),
    "TIMESTAMP_NTZ": (
        "TIMESTAMP_NTZ'2026-01-31 12:00:00'",
        '"2026-01-31T12:00:00Z"',
        datetime(2026, 1, 31, 12, 0),
    ),
    "ARRAY<INT>": ("array(1, NULL)", "[1,null]", [1, None]),
    "MAP<STRING, INT>": ("map('a', 1)", '{"a":1}', {"a": 1}),
    "STRUCT<b: INT>": ("named_struct('b', 1, 'c', CAST(NULL AS INT))", '{"b":1}', {"b": 1}),
}
"""Type → an expression of it, the JSON that is written, and the value that is read."""

MAP = f"m{list(TYPES).index('MAP<STRING, INT>')}"
WRITTEN_ONLY = {
    "VARIANT": ("""parse_json('{"a":[1,"x",null]}')""", '{"a":[1,"x",null]}'),
    "MAP<INT, INT>": ("map(1, 2)", '{"1":2}'),
    "VOID": ("NULL", None),
}
REFUSED = {
    "INTERVAL YEAR TO MONTH": "INTERVAL '1' YEAR",
    "INTERVAL DAY TO SECOND": "INTERVAL '1' DAY",
    "MAP<DATE, INT>": "map(DATE'2026-01-31', 1)",
}


@pytest.fixture(scope="module")
def berlin(spark: Any) -> Iterator[Any]:
    """The session in a time zone that is not UTC."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def write(spark: Any, folder: Path, expressions: Iterable[str]) -> Callable[[], Any]:
    """Publish a message with a member for each expression; return what makes a batch reader of it."""
    queue = {"url": f"sqlite:///{folder}/queue.db", "queue": "orders"}
    members = ", ".join(f"'m{number}', {expression}" for number, expression in enumerate(expressions))
    rows = spark.sql(f"SELECT 'urn:babel:orders:created' AS job, named_struct({members}) AS data")
    rows.write.format("babelqueue").options(**queue).mode("append").save()
    return lambda: spark.read.format("babelqueue").options(**queue)


def test_types_both_ways(berlin: Any, tmp_path: Path) -> None:
    reader = write(berlin, tmp_path, (expression for expression, _, _ in TYPES.values()))
    texts = [f'"m{number}":{text}' for number, (_, text, _) in enumerate(TYPES.values())]
    assert reader().load().head().data == f"{{{','.join(texts)}}}"
    members = ", ".join(f"m{number}: {kind}" for number, kind in enumerate(TYPES))
    [read] = reader().schema(f"data STRUCT<{members}>").load().toArrow().column("data").to_pylist()
    moment = read.pop(f"m{list(TYPES).index('TIMESTAMP')}")
    assert moment.astimezone(UTC).isoformat() == "2026-01-31T11:00:00+00:00"
    wanted = {f"m{number}": value for number, (_, _, value) in enumerate(TYPES.values()) if value is not None}
    assert {name: dict(value) if name == MAP else value for name, value in read.items()} == wanted


def test_types_that_are_only_written(berlin: Any, tmp_path: Path) -> None:
    reader = write(berlin, tmp_path, (expression for expression, _ in WRITTEN_ONLY.values()))
    texts = [f'"m{number}":{text}' for number, (_, text) in enumerate(WRITTEN_ONLY.values()) if text]
    assert reader().load().head().data == f"{{{','.join(texts)}}}"


def test_a_payload_that_looks_like_a_variant_is_none(berlin: Any, tmp_path: Path) -> None:
    reader = write(berlin, tmp_path, ["named_struct('value', X'00', 'metadata', X'01')"])
    assert reader().load().head().data == '{"m0":{"value":"AA==","metadata":"AQ=="}}'
    found = reader().load().selectExpr("variant_get(try_parse_json(data), '$.m0.value', 'string') AS value")
    assert found.head().value == "AA=="


@pytest.mark.parametrize("kind", REFUSED)
def test_a_write_of_a_type_without_a_form_in_json(kind: str, berlin: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"OptionError: .*data(\.m0)? has (the|a) type .* cast it to STRING"):
        write(berlin, tmp_path, [REFUSED[kind]])


@pytest.mark.parametrize("kind", [*WRITTEN_ONLY, *REFUSED, "CHAR(3)"])
def test_a_read_of_a_type_that_no_value_of_json_has(kind: str, spark: Any) -> None:
    wanted = spark.sql(f"SELECT CAST(NULL AS STRUCT<a: {kind}>) AS data").schema["data"].dataType
    with pytest.raises(OptionError, match=r"read it as STRING|keys of JSON are strings"):
        check_data(wanted if kind != "CHAR(3)" else CharType(3))
    if kind == "VARIANT":
        with pytest.raises(OptionError, match=r"take try_parse_json\(data\) of it"):
            check_data(wanted)


def test_the_page_of_columns_has_each_type() -> None:
    page = (Path(__file__).parents[2] / "docs/columns.md").read_text()
    table = page.split("## Types of `data`")[1].split("\n## ")[0]
    named = set(re.findall(r"`([A-Z_]+)", table))
    wanted = {re.split(r"[(< ]", kind)[0] for kind in [*TYPES, *WRITTEN_ONLY, *REFUSED]}
    assert wanted <= named


@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("ns"),
        pa.duration("us"),
        pa.struct(
            [pa.field("srid", pa.int32()), pa.field("wkb", pa.binary(), metadata={"geometry": "true"})]
        ),
        pa.list_(pa.map_(pa.bool_(), pa.int32())),
    ],
)
def test_arrow_types_without_a_form_in_json(kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match="no form in JSON"):
        texts_of_payloads(pa.nulls(1, pa.struct([("a", kind)])), 0)


def test_errors_and_times_of_rows() -> None:
    moments = pa.array(
        [datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=1)))],
        pa.timestamp("us", tz="Europe/Berlin"),
    )
    assert texts_of_payloads(moments, 0).to_pylist() == ['"2026-01-31T11:00:00Z"']
    assert moments.to_pylist()[0].astimezone(UTC).hour == 11
    column = pa.array([{"a": 1.0}, {"a": float("nan")}])
    with pytest.raises(BabelQueueError, match="row 11 has nan"):
        texts_of_payloads(column, 10)


def test_a_user_defined_type_is_written_as_it_is_stored(berlin: Any, tmp_path: Path) -> None:
    queue = {"url": f"sqlite:///{tmp_path}/queue.db", "queue": "orders"}
    point = StructType([StructField("at", ExamplePointUDT())])
    rows = berlin.createDataFrame(
        [("urn:x", (ExamplePoint(1.0, 2.0),))],
        StructType([StructField("job", StringType()), StructField("data", point)]),
    )
    rows.write.format("babelqueue").options(**queue).mode("append").save()
    assert berlin.read.format("babelqueue").options(**queue).load().head().data == '{"at":[1.0,2.0]}'
    with pytest.raises(OptionError, match="read it as STRING"):
        check_data(point)


def test_rows_are_counted_within_the_task() -> None:
    options = write_options({"url": "sqlite:////tmp/never.db"})
    for more, wanted in (
        ({"queue": ["a", None]}, "row 11 names no queue"),
        ({"queue": ["a", "a"], "delay": [0, -1]}, "row 11 has the delay '-1'"),
        ({"queue": ["a", "a"], "delay": ["0s", "soon"]}, "row 11 has the delay 'soon'"),
        ({"queue": ["a", "a"], "trace_id": ["t", " "]}, r"\(row 11: trace_id"),
    ):
        rows = pa.RecordBatch.from_pydict({"job": ["urn:x"] * 2, "data": ["{}"] * 2, **more})
        with options.binding() as binding, pytest.raises(BabelQueueError, match=wanted):
            to_messages(rows, 10, IdSource("run"), options, binding)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (Decimal("0E-18"), pa.decimal128(38, 18), '"0.000000000000000000"'),
        (Decimal("0.0000001"), pa.decimal128(10, 7), '"0.0000001"'),
        (0.1, pa.float32(), "0.1"),
        ([datetime(2026, 1, 31)], pa.large_list(pa.timestamp("us")), '["2026-01-31T00:00:00Z"]'),
    ],
)
def test_a_value_is_written_in_its_plain_form(value: object, kind: pa.DataType, text: str) -> None:
    assert texts_of_payloads(pa.array([value], kind), 0).to_pylist() == [text]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")])
def test_a_time_that_no_reader_takes_names_its_row(kind: pa.DataType) -> None:
    far = pa.array(
        [0, 2**31 - 1 if kind == pa.date32() else 2**60], pa.int32() if kind == pa.date32() else pa.int64()
    )
    with pytest.raises(BabelQueueError, match="row 8 has a time in its data beyond the years 1 to 9999"):
        texts_of_payloads(far.cast(kind), 7)
