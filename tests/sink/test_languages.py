"""What a write does for consumers in other languages: times, numbers, URNs, `meta.lang`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import binding_class
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows import languages
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def body(data: pa.Array, job: str = "urn:babel:orders:created", **options: str) -> str:
    """The body that one row becomes."""
    rows = pa.RecordBatch.from_pydict({"job": [job], "data": data})
    url = "sqlite:////srv/queue.db"
    given = write_options({"url": url, "queue": "orders", **options})
    with binding_class("sql")(BindingConfig(url=url)) as binding:
        [messages] = to_messages(rows, 0, IdSource("a test"), given, binding).values()
    return bytes(messages.column("body")[0].as_py()).decode()


def data_of(data: pa.Array, **options: str) -> str:
    """The text of `data` in that body."""
    return body(data, **options).partition('"data":')[2].partition(',"meta":')[0]


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        (pa.timestamp("us", "UTC"), NOON),
        (pa.timestamp("us", "Europe/Berlin"), NOON.astimezone(BERLIN)),
        (pa.timestamp("us"), NOON.replace(tzinfo=None)),
    ],
    ids=["UTC", "Berlin", "without a zone"],
)
def test_times_go_in_utc(kind: pa.DataType, moment: datetime) -> None:
    value = {"at": moment, "all": [moment], "by": {"name": moment}}
    shape = pa.struct([("at", kind), ("all", pa.list_(kind)), ("by", pa.map_(pa.string(), kind))])
    text = "2026-01-31T12:00:00Z"
    found = data_of(pa.array([{**value, "by": [("name", moment)]}], shape))
    assert json.loads(found) == {"at": text, "all": [text], "by": {"name": text}}


@pytest.mark.spark
def test_a_session_in_berlin_writes_utc(spark: Any, queue: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.sql("""SELECT 'urn:x' AS job, named_struct(
            'at', TIMESTAMP '2026-01-31 13:00:00', 'wall', TIMESTAMP_NTZ '2026-01-31 13:00:00') AS data""")
        frame.write.format("babelqueue").options(url=url, queue=queue).mode("append").save()
        [row] = spark.read.format("babelqueue").options(url=url, queue=queue).load().collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert row.data == '{"at":"2026-01-31T12:00:00Z","wall":"2026-01-31T13:00:00Z"}'


def test_decimals_go_as_strings() -> None:
    kind = pa.struct([("amount", pa.decimal128(12, 2))])
    assert data_of(pa.array([{"amount": Decimal("9.90")}], kind)) == '{"amount":"9.90"}'


LARGE = 2**53
TEXT = (
    f'{{"n": {LARGE}, "m":-{LARGE}, "most":{LARGE - 1}, "a":[12345678901234567890, 1], '
    f'"{LARGE}":"{LARGE} \\" {LARGE}", "f":1234567890123456.5, "e":9007199254740993e3, "\\\\":{LARGE}}}'
)
QUOTED = (
    f'{{"n": "{LARGE}", "m":"-{LARGE}", "most":{LARGE - 1}, "a":["12345678901234567890", 1], '
    f'"{LARGE}":"{LARGE} \\" {LARGE}", "f":1234567890123456.5, "e":9007199254740993e3, "\\\\":"{LARGE}"}}'
)


def test_numbers_beyond_javascripts_go_as_strings_where_the_option_says_so() -> None:
    text = pa.array([TEXT])
    assert json.loads(TEXT)["\\"] == int(json.loads(QUOTED)["\\"])
    assert data_of(text) == TEXT
    assert data_of(text, largeNumbers="string") == QUOTED
    typed = pa.array([{"n": LARGE, "small": 7}])
    assert data_of(typed) == f'{{"n":{LARGE},"small":7}}'
    assert data_of(typed, largeNumbers="string") == f'{{"n":"{LARGE}","small":7}}'


@pytest.mark.parametrize(
    ("job", "warned"),
    [
        ("App\\Jobs\\Charge", True),
        ("com.acme.orders.OrderCreated", True),
        ("urn:babel:orders:created", False),
        ("orders.created", False),
        ("urn:babel:orders:Invoice.Requested", False),
    ],
)
def test_the_name_of_a_class_gets_one_warning(
    job: str, warned: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(languages, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert json.loads(body(pa.array(["{}"]), job))["job"] == job
    assert [f"job {job!r} is the name of a class" in each.getMessage() for each in caplog.records] == [
        True
    ] * warned


def test_meta_names_python() -> None:
    assert json.loads(body(pa.array(["{}"])))["meta"]["lang"] == "python"
