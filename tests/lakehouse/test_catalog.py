"""Tables of a catalog in Delta Lake and Iceberg: once under repeats and kills, wider with their schema."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.errors import CatalogError
from tests.brokers import url_of
from tests.catalog.killed_tables import POINTS
from tests.catalog.registries import MAIL, MAILS, ORDER, ORDERS
from tests.catalog.test_tables import killed, numbers, written
from tests.lakehouse import page
from tests.lakehouse.tables import create_namespaces, forget_last_commit
from tests.streams import backlog, envelope, publish

pytestmark = pytest.mark.spark

FORMATS = ["delta", "iceberg"]
ROW = {"type": "object", "properties": {"sku": {"type": "string"}}}
ROWS = {
    **ORDER,
    "properties": {
        **ORDER["properties"],
        "rows": {"type": "array", "items": ROW},
        "by_shop": {"type": "object", "additionalProperties": ROW},
    },
}
WIDER_ROW = {**ROW, "properties": {**ROW["properties"], "pieces": {"type": "integer"}}}
WIDER = {
    **ROWS,
    "properties": {
        **ROWS["properties"],
        "rows": {"type": "array", "items": WIDER_ROW},
        "by_shop": {"type": "object", "additionalProperties": WIDER_ROW},
        "note": {"type": "string"},
    },
}


@pytest.fixture
def folder(spark: Any) -> Path:
    """Where Iceberg's catalog is that of the session."""
    return Path(spark.conf.get("spark.sql.catalog.lake.warehouse")).parent.parent


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of("sqlite", request, tmp_path)


@pytest.fixture
def namespace(form: str, spark: Any, folder: Path) -> Iterator[str]:
    """Of tables that end with the test."""
    name = create_namespaces(spark, folder)[form]
    yield name
    for row in spark.sql(f"SHOW TABLES IN {name}").collect():
        spark.sql(f"DROP TABLE {name}.{row.tableName}")
    shutil.rmtree(folder / "lake/delta/shop.db", ignore_errors=True)  # of tables that a killed program made


def written_all(spark: Any, url: str, queue: str, *given: Any, **options: Any) -> None:
    """Write what is in the queue; on PySpark 4.1 a run may do no more than the batch that was cut short."""
    written(spark, url, queue, *given, **options)
    if backlog(url, queue):
        written(spark, url, queue, *given, **options)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_a_repeated_batch_is_there_once_and_a_wider_schema_widens_its_table(
    form: str, namespace: str, spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    options = {"format": form, "checkpoint": str(tmp_path / "checkpoint")}
    row = {"sku": "a"}
    publish(url, queue, [envelope(n, queue, data={"order_id": n, "rows": [row]}) for n in range(1, 11)])
    mails = [envelope(n, queue, job=MAILS, data={"to": f"{n}@b"}) for n in range(3)]
    publish(url, queue, [*mails, b"bad"])
    written(spark, url, queue, tmp_path, {ORDERS: ROWS}, namespace, **options)
    orders = f"{namespace}.urn_babel_orders_created"
    assert numbers(spark.table(orders)) == list(range(1, 11))
    assert spark.table(orders).schema["data"].dataType.simpleString() == (
        "struct<order_id:bigint,amount:decimal(38,2),rows:array<struct<sku:string>>,"
        "by_shop:map<string,struct<sku:string>>>"
    )
    assert spark.table(f"{namespace}.others").count() == 4

    forget_last_commit(tmp_path / "checkpoint")
    data = {"order_id": 11, "rows": [{"sku": "b", "pieces": 2}], "by_shop": {"x": {"pieces": 3}}, "note": "n"}
    publish(url, queue, [envelope(11, queue, data=data), mails[0]])
    written_all(spark, url, queue, tmp_path, {ORDERS: WIDER, MAILS: MAIL}, namespace, **options)
    assert numbers(spark.table(orders)) == list(range(1, 12))
    [found] = spark.table(orders).where("data.order_id = 11").select("data.*").collect()
    assert (found.note, found.rows[0].pieces, found.by_shop["x"].pieces) == ("n", 2, 3)
    assert spark.table(orders).where("data.rows[0].pieces IS NULL").count() == 10
    mailed = spark.table(f"{namespace}.urn_babel_mails_sent").select("data.to").collect()
    assert sorted(row.to for row in mailed) == ["0@b", "0@b", "1@b", "2@b"]
    assert [row.error for row in spark.table(f"{namespace}.others").collect()] == ["poison"]

    publish(url, queue, [envelope(12, queue)])
    retyped = {**ORDER, "properties": {"order_id": {"type": "string"}}}
    with pytest.raises(CatalogError, match=r"has data\.order_id as bigint, but its schema says string now"):
        written(spark, url, queue, tmp_path, {ORDERS: retyped}, namespace, **options)
    assert backlog(url, queue) == 1


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_killed_driver_leaves_each_message_in_one_table_once(
    form: str, point: str, namespace: str, spark: Any, url: str, queue: str, folder: Path, tmp_path: Path
) -> None:
    """The catalog of the run after the kill knows one URN more."""
    mails = [envelope(n, queue, job=MAILS, data={"to": f"{n}@b"}) for n in range(10)]
    publish(url, queue, [*(envelope(n, queue) for n in range(1, 11)), *mails, b"bad"])
    submitted = shlex.join([*page.SUBMITTED, "pyspark-shell"])
    killed(point, url, queue, tmp_path, namespace, form, str(folder), PYSPARK_SUBMIT_ARGS=submitted)
    assert create_namespaces(spark, folder)[form] == namespace
    checkpoint = str(tmp_path / "checkpoint")
    schemas = {ORDERS: ORDER, MAILS: MAIL}
    written_all(spark, url, queue, tmp_path, schemas, namespace, format=form, checkpoint=checkpoint)
    assert numbers(spark.table(f"{namespace}.urn_babel_orders_created")) == list(range(1, 11))
    mailed = spark.table(f"{namespace}.urn_babel_mails_sent").select("data.to").collect()
    assert sorted(row.to for row in mailed) == [f"{n}@b" for n in range(10)]
    assert [row.error for row in spark.table(f"{namespace}.others").collect()] == ["poison"]
