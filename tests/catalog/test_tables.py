"""A table for each URN: typed, once under kills, new with its URN, wider with its schema."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from babelqueue_spark import functions as bq
from babelqueue_spark.catalog import Catalog
from babelqueue_spark.catalog.targets import Tables
from babelqueue_spark.catalog.widening import additions, widened
from babelqueue_spark.errors import CatalogError, OptionError
from babelqueue_spark.schemas.sensitive import MARK
from tests.brokers import url_of
from tests.catalog.killed_tables import POINTS
from tests.catalog.registries import MAIL, MAILS, ORDER, ORDERS
from tests.streams import WAIT, backlog, envelope, publish, stream


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of("sqlite", request, tmp_path)


def written(
    spark: Any, url: str, queue: str, folder: Path, schemas: Any, target: str, **options: Any
) -> None:
    """Write what is in the queue now; the journal keeps what a test may repeat."""
    messages = stream(spark, url, queue, folder, journalRetention="1h")
    query = Catalog(schemas).tables(messages, target, availableNow=True, **options)
    assert query.awaitTermination(WAIT)
    if query.exception():
        raise query.exception()


def killed(
    point: str,
    url: str,
    queue: str,
    folder: Path,
    target: str,
    form: str,
    warehouse: str = "",
    **environment: str,
) -> None:
    """Write what is in the queue, in a process that dies at the point."""
    program = [sys.executable, "-m", "tests.catalog.killed_tables"]
    arguments = [point, url, queue, str(folder), target, form, warehouse]
    done = subprocess.run([*program, *arguments], env={**os.environ, **environment}, check=False)
    assert done.returncode == -signal.SIGKILL


def numbers(frame: Any) -> list[int]:
    return sorted(row.order_id for row in frame.select("data.order_id").collect())


def folder(target: Path, urn: str) -> str:
    return str(target / urn.replace(":", "_"))


@pytest.mark.spark
def test_each_urn_has_a_typed_table_and_the_rest_is_beside_it(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    mail = envelope(1, queue, job=MAILS, data={"to": "a@b"})
    bodies = [*(envelope(n, queue) for n in range(1, 21)), mail, envelope(0, queue), b"bad"]
    publish(url, queue, [*bodies, envelope(1, queue, job="urn:other")])
    written(spark, url, queue, tmp_path, {ORDERS: ORDER}, str(lake))
    orders = spark.read.parquet(folder(lake, ORDERS))
    assert numbers(orders) == list(range(1, 21))
    assert orders.schema["data"].dataType.simpleString() == "struct<order_id:bigint,amount:decimal(38,2)>"
    others = spark.read.parquet(str(lake / "others")).collect()
    assert {(row.job, row.error, row.violation) for row in others} == {
        (MAILS, None, None),
        (ORDERS, None, "order_id: below_minimum"),
        (None, "poison", None),
        ("urn:other", None, None),
    }
    assert b"bad" in {bytes(row.body) for row in others}
    assert backlog(url, queue) == 0

    wider = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
    publish(url, queue, [envelope(1, queue, data={"order_id": 21, "note": "x"}), mail])
    written(spark, url, queue, tmp_path, {ORDERS: wider, MAILS: MAIL}, str(lake))
    orders = spark.read.option("mergeSchema", "true").parquet(folder(lake, ORDERS))
    assert numbers(orders) == list(range(1, 22))
    assert [row.note for row in orders.where("data.order_id > 19").select("data.note").collect()].count(
        "x"
    ) == 1
    assert [row.to for row in spark.read.parquet(folder(lake, MAILS)).select("data.to").collect()] == ["a@b"]

    publish(url, queue, [envelope(22, queue)])
    retyped = {**ORDER, "properties": {"order_id": {"type": "string"}}}
    with pytest.raises(CatalogError, match=r"has data\.order_id as bigint, but its schema says string now"):
        written(spark, url, queue, tmp_path, {ORDERS: retyped}, str(lake))
    assert backlog(url, queue) == 1


@pytest.mark.spark
def test_typed_data_is_that_of_the_column(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    publish(url, queue, [envelope(1, queue, job=MAILS, data={"to": "a@b"})])
    catalog = Catalog({MAILS: {**MAIL, "properties": {"to": {"type": "string", MARK: True}}}})
    messages = stream(spark, url, queue, tmp_path)
    masked = messages.withColumn("data", bq.mask("job", "data", catalog))
    query = catalog.tables(masked, str(tmp_path / "lake"), availableNow=True)
    assert query.awaitTermination(WAIT)
    [row] = spark.read.parquet(folder(tmp_path / "lake", MAILS)).collect()
    assert (row.data.to, row.data_json) == ("***", '{"to":"***"}')


@pytest.mark.spark
@pytest.mark.parametrize(("target", "form"), [("s3://bucket/lake", "parquet"), ("/srv/lake", "delta")])
def test_a_folder_is_one_of_files(spark: Any, target: str, form: str) -> None:
    with pytest.raises(OptionError, match="need a namespace"):
        Catalog({MAILS: MAIL}).tables(spark.range(1), target, format=form)


@pytest.mark.spark
def test_names_that_differ_by_case_alone_are_refused(spark: Any) -> None:
    with pytest.raises(CatalogError, match="its schema says orderId now"):
        widened(columns("orderid BIGINT"), columns("orderId BIGINT"), "t")


@pytest.mark.spark
def test_a_table_is_widened_by_a_struct_whose_members_need_quotes(
    spark: Any, queue: str, tmp_path: Path
) -> None:
    namespace = queue.replace("-", "_")
    spark.sql(f"CREATE DATABASE {namespace} LOCATION '{tmp_path}/tables'")
    wider = columns("a BIGINT, b STRUCT<`order-id`: BIGINT, `a b`: ARRAY<STRUCT<`c``d`: STRING>>>")
    for schema in (columns("a BIGINT"), wider):
        Tables(namespace, "parquet").prepare(spark, "orders", schema)
    assert spark.table(f"{namespace}.orders").drop("part").schema == wider
    spark.sql(f"DROP DATABASE {namespace} CASCADE")


@pytest.mark.spark
def test_tables_of_a_namespace(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    namespace = queue.replace("-", "_")
    spark.sql(f"CREATE DATABASE {namespace} LOCATION '{tmp_path}/tables'")
    with pytest.raises(OptionError, match="need checkpoint="):
        Catalog({ORDERS: ORDER}).tables(stream(spark, url, queue, tmp_path), namespace)
    publish(url, queue, [*(envelope(n, queue) for n in range(1, 6)), b"bad"])
    checkpoint = str(tmp_path / "checkpoint")
    written(spark, url, queue, tmp_path, {ORDERS: ORDER}, namespace, checkpoint=checkpoint)
    assert numbers(spark.table(f"{namespace}.urn_babel_orders_created")) == [1, 2, 3, 4, 5]
    assert [row.error for row in spark.table(f"{namespace}.others").collect()] == ["poison"]
    wider = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
    with pytest.raises(CatalogError, match=r"lacks data\.note, and the format parquet cannot add it there"):
        written(spark, url, queue, tmp_path, {ORDERS: wider}, namespace, checkpoint=checkpoint)
    spark.sql(f"DROP DATABASE {namespace} CASCADE")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_driver_leaves_each_message_in_one_table_once(
    point: str, spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    """The catalog of the run after the kill knows one URN more: its messages leave the table `others`."""
    lake = tmp_path / "lake"
    mails = [envelope(n, queue, job=MAILS, data={"to": f"{n}@b"}) for n in range(10)]
    publish(url, queue, [*(envelope(n, queue) for n in range(1, 11)), *mails, b"bad"])
    killed(point, url, queue, tmp_path, str(lake), "parquet", PYSPARK_SUBMIT_ARGS="pyspark-shell")
    checkpoint = str(tmp_path / "checkpoint")
    written(spark, url, queue, tmp_path, {ORDERS: ORDER, MAILS: MAIL}, str(lake), checkpoint=checkpoint)
    assert numbers(spark.read.parquet(folder(lake, ORDERS))) == list(range(1, 11))
    found = spark.read.parquet(folder(lake, MAILS)).select("data.to").collect()
    assert sorted(row.to for row in found) == [f"{n}@b" for n in range(10)]
    assert [row.error for row in spark.read.parquet(str(lake / "others")).collect()] == ["poison"]


@pytest.mark.spark
def test_a_urn_with_the_table_of_the_rest_is_refused(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    with pytest.raises(CatalogError, match="which is for what fits no schema"):
        written(spark, url, queue, tmp_path, {"others": ORDER}, str(tmp_path / "lake"))


@pytest.mark.spark
def test_a_read_with_its_own_columns_is_refused(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    messages = stream(spark, url, queue, tmp_path, "job STRING, data STRUCT<order_id BIGINT>")
    with pytest.raises(OptionError, match="tables need the columns of a read as they are"):
        Catalog({ORDERS: ORDER}).tables(messages, str(tmp_path / "lake"))


def columns(ddl: str) -> StructType:
    found = DataType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


@pytest.mark.spark
def test_what_is_new_is_added_wherever_it_is(spark: Any) -> None:
    old = columns(
        "a BIGINT, gone STRING, s STRUCT<b BIGINT>, l ARRAY<STRUCT<c BIGINT>>, m MAP<STRING, STRUCT<d BIGINT>>"
    )
    new = columns(
        "s STRUCT<e STRING, b BIGINT>, l ARRAY<STRUCT<f DATE>>, m MAP<STRING, STRUCT<g DATE>>, h STRING, a BIGINT"
    )
    found = widened(old, new, "t")
    assert found == columns(
        "a BIGINT, gone STRING, s STRUCT<b BIGINT, e STRING>, l ARRAY<STRUCT<c BIGINT, f DATE>>, "
        "m MAP<STRING, STRUCT<d BIGINT, g DATE>>, h STRING"
    )
    assert [".".join(path) for path, _ in additions(old, found)] == ["s.e", "l.element.f", "m.value.g", "h"]
    assert isinstance(found["l"].dataType, ArrayType)
    assert isinstance(found["m"].dataType, MapType)
    assert json.loads(found.json()) == json.loads(widened(found, found, "t").json())


@pytest.mark.spark
@pytest.mark.parametrize("new", ["a STRING", "a DOUBLE", "a STRUCT<b BIGINT>"])
def test_another_type_is_refused(spark: Any, new: str) -> None:
    with pytest.raises(CatalogError, match=r"\[BABELQUEUE_CATALOG_FAILED\] t has a as bigint"):
        widened(columns("a BIGINT"), columns(new), "t")


@pytest.mark.spark
def test_what_has_no_fixed_type_is_variant(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    anything = {"of": {"oneOf": [{"type": "string"}, {"type": "object"}]}, "note": {"type": "string"}}
    parts = {
        "rows": {"type": "array", "items": {"type": "object", "properties": {"x": {}}}},
        "by": {"type": "object", "additionalProperties": {}},
    }
    schema = {**ORDER, "properties": {**ORDER["properties"], **anything, **parts}}
    given = [
        {"order_id": 1, "of": "12", "note": "12", "rows": [{"x": [1, "a"]}, {}], "by": {"k": {"l": None}}},
        {"order_id": 2, "of": {"a": 0.1}},
        {"order_id": 3, "of": None},
        {"order_id": "misfit", "of": 4},
    ]
    publish(url, queue, [envelope(1, queue, data=data) for data in given])
    publish(url, queue, [envelope(1, queue, job=MAILS, data={"to": ["a"]}), b"bad"])
    repeated = envelope(5, queue).replace(b'{"order_id":5}', b'{"order_id":5,"of":{"a":1,"a":2}}')
    publish(url, queue, [repeated])
    lake = tmp_path / "lake"
    written(spark, url, queue, tmp_path, {ORDERS: schema}, str(lake), variant=True)
    orders = spark.read.parquet(folder(lake, ORDERS))
    assert (
        orders.schema["data"]
        .dataType.simpleString()
        .startswith("struct<order_id:bigint,amount:decimal(38,2),of:variant,note:string")
    )
    found = orders.selectExpr(
        "data.order_id", "data.note", "to_json(data.of)", "to_json(data.rows)", "to_json(data.by)"
    )
    rows = {row[0]: tuple(row[1:]) for row in found.collect()}
    assert rows == {
        1: ("12", '"12"', '[{"x":[1,"a"]},{}]', '{"k":{"l":null}}'),
        2: (None, '{"a":0.1}', None, None),
        3: (None, None, None, None),
        5: (None, None, None, None),
    }
    assert [row.data_json for row in orders.where("data.order_id = 5").collect()] == [
        '{"order_id":5,"of":{"a":1,"a":2}}'
    ]
    others = spark.read.parquet(str(lake / "others"))
    assert {(row[0], row[1]) for row in others.selectExpr("job", "to_json(data)").collect()} == {
        (MAILS, '{"to":["a"]}'),
        (ORDERS, '{"of":4,"order_id":"misfit"}'),
        (None, None),
    }


@pytest.mark.spark
def test_a_format_without_variant_is_refused(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    messages = stream(spark, url, queue, tmp_path)
    with pytest.raises(OptionError, match="VARIANT is written to parquet and delta, not to orc"):
        Catalog({MAILS: MAIL}).tables(messages, str(tmp_path / "lake"), format="orc", variant=True)
