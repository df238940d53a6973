"""The job `drain` into tables of Delta Lake and Iceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.jobs.__main__ import main
from tests.brokers import url_of
from tests.catalog.registries import ORDER, ORDERS, registry
from tests.lakehouse.tables import forget_last_commit
from tests.streams import envelope, publish

pytestmark = pytest.mark.spark


@pytest.mark.nightly
def test_data_without_a_type_is_variant_in_delta(
    spark: Any, queue: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = url_of("sqlite", request, tmp_path)
    spark.sql("CREATE DATABASE IF NOT EXISTS variants")
    anything = {**ORDER, "properties": {**ORDER["properties"], "of": {"oneOf": [{"type": "string"}, {}]}}}
    arguments = ["drain", "--url", url, "--queue", queue, "--namespace", "variants", "--format", "delta"]
    arguments += ["--state", str(tmp_path / "state"), "--option", "journalRetention=1h", "--variant"]
    arguments += ["--catalog", str(registry(tmp_path / "registry", {ORDERS: anything}))]
    publish(url, queue, [envelope(1, data={"order_id": 1, "of": [7]}), envelope(2, job="urn:other")])
    assert main(arguments) == 0
    forget_last_commit(tmp_path / "state/checkpoint")
    assert main(arguments) == 0
    orders = spark.table("variants.urn_babel_orders_created")
    assert orders.selectExpr("variant_get(data.of, '$[0]', 'int')").collect() == [(7,)]
    others = spark.table("variants.others")
    assert others.selectExpr("variant_get(data, '$.order_id', 'int')").collect() == [(2,)]
    spark.sql("DROP DATABASE variants CASCADE")


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(("format", "catalog"), [("delta", "spark_catalog"), ("iceberg", "lake")])
def test_a_repeated_batch_is_in_its_table_once(
    format: str,
    catalog: str,
    typed: bool,
    spark: Any,
    queue: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    url = url_of("sqlite", request, tmp_path)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {catalog}.drained")
    arguments = ["drain", "--url", url, "--queue", queue, "--namespace", f"{catalog}.drained"]
    arguments += ["--format", format, "--state", str(tmp_path / "state"), "--option", "journalRetention=1h"]
    if typed:
        arguments += ["--catalog", str(registry(tmp_path / "registry", {ORDERS: ORDER}))]
    publish(url, queue, [envelope(number) for number in range(1, 11)])
    assert main(arguments) == 0
    forget_last_commit(tmp_path / "state/checkpoint")
    publish(url, queue, [envelope(number) for number in range(11, 21)])
    assert main(arguments) == 0
    table = f"{catalog}.drained.urn_babel_orders_created"
    rows = spark.table(table).collect()
    assert sorted(row.data_json for row in rows) == sorted(f'{{"order_id":{n}}}' for n in range(1, 21))
    if typed:
        assert sorted(row.data.order_id for row in rows) == list(range(1, 21))
        assert spark.table(f"{catalog}.drained.others").count() == 0
        spark.sql(f"DROP TABLE {catalog}.drained.others")
    spark.sql(f"DROP TABLE {table}")
    spark.sql(f"DROP DATABASE {catalog}.drained")
