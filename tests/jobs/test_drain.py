"""The job drain: from a queue to files and tables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.catalog.targets import folder_of, table_of
from tests.catalog.registries import MAIL, ORDER, registry
from tests.jobs.conftest import Run
from tests.metrics.scrapes import Scrape
from tests.streams import backlog, envelope, publish

pytestmark = pytest.mark.spark

SAME = [
    "urn:a:b",
    "urn:a_b",
    "urn_a:b",
    "urn:a.b",
    "..",
    ".",
    "",
    "urn:/a",
    "urn:" + "x" * 300,
    "urn:ä",
    "urn:A:b",
    ":state",
    "/state",
    "_",
]
ORDERS, MAILS = "urn:babel:orders:created", "urn:babel:mails:sent"


def test_typed_per_urn_and_bad_ones_to_the_dead_letter_queue(
    spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run
) -> None:
    arguments = ["drain", "--url", sqlite, "--queue", queue, "--output", str(tmp_path / "lake")]
    arguments += ["--schema", f"{ORDERS}=order_id BIGINT", "--option", "maxMessagesPerTrigger=60"]
    arguments += ["--metrics", str(tmp_path / "drain.prom")]
    publish(sqlite, queue, [*(envelope(n, queue) for n in range(100)), envelope(5, queue, job=MAILS), b"bad"])
    first = run(*arguments)
    assert (first.code, first.err) == (0, "")
    assert "poison" in first.out
    told = Scrape((tmp_path / "drain.prom").read_text())
    assert told.value("babelqueue_messages_total", query=f"drain {queue}") == 102
    assert told.value("babelqueue_dead_letter_queue_messages", broker="sql", queue=f"{queue}.dlq") == 1
    publish(sqlite, queue, [envelope(n, queue) for n in range(100, 110)])
    assert run(*arguments).code == 0

    orders = spark.read.parquet(str(tmp_path / "lake/urn_babel_orders_created"))
    assert sorted(row.order_id for row in orders.select("data.order_id").collect()) == list(range(110))
    mails = spark.read.parquet(str(tmp_path / "lake/urn_babel_mails_sent"))
    assert [row.data for row in mails.collect()] == ['{"order_id":5}']
    assert (backlog(sqlite, queue), backlog(sqlite, f"{queue}.dlq")) == (0, 1)


def test_types_of_a_catalog(spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    lake, schemas = tmp_path / "lake", {ORDERS: ORDER}
    arguments = ["drain", "--url", sqlite, "--queue", queue, "--output", str(lake)]
    arguments += ["--catalog", str(registry(tmp_path / "registry", schemas))]
    mail = envelope(1, queue, job=MAILS, data={"to": "a@b"})
    publish(sqlite, queue, [*(envelope(n, queue) for n in range(1, 11)), envelope(0, queue), mail, b"bad"])
    first = run(*arguments)
    assert (first.code, first.err) == (0, "")
    assert "others" in first.out
    found = spark.read.parquet(str(lake / "others")).collect()
    assert sorted((row.job or "", row.error or "", row.violation or "") for row in found) == [
        ("", "poison", ""),
        (MAILS, "", ""),
        (ORDERS, "", "order_id: below_minimum"),
    ]
    schemas[ORDERS] = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
    registry(tmp_path / "registry", {**schemas, MAILS: MAIL})
    publish(sqlite, queue, [envelope(1, queue, data={"order_id": 11, "note": "x"}), mail])
    assert run(*arguments).code == 0
    orders = spark.read.option("mergeSchema", "true").parquet(str(lake / "urn_babel_orders_created"))
    assert sorted(row.order_id for row in orders.select("data.order_id").collect()) == list(range(1, 12))
    assert [row.note for row in orders.where("data.note IS NOT NULL").select("data.note").collect()] == ["x"]
    mails = spark.read.parquet(str(lake / "urn_babel_mails_sent")).select("data.to").collect()
    assert [row.to for row in mails] == ["a@b"]
    assert (backlog(sqlite, queue), backlog(sqlite, f"{queue}.dlq")) == (0, 0)

    registry(tmp_path / "registry", {ORDERS: {"properties": {"order_id": {"type": "string"}}}})
    publish(sqlite, queue, [envelope(12, queue)])
    refused = run(*arguments)
    assert refused.code == 1
    assert "has data.order_id as bigint, but its schema says string now" in refused.err
    assert backlog(sqlite, queue) == 1


def test_data_without_a_type_is_variant(
    spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run
) -> None:
    arguments = ["drain", "--url", sqlite, "--queue", queue, "--output", str(tmp_path / "lake"), "--variant"]
    publish(sqlite, queue, [envelope(1, queue), envelope(1, queue, job=MAILS, data={"to": ["a@b"]})])
    done = run(*arguments, "--schema", f"{ORDERS}=order_id BIGINT")
    assert (done.code, done.err) == (0, "")
    mails = spark.read.parquet(str(tmp_path / "lake/urn_babel_mails_sent"))
    assert mails.selectExpr("variant_get(data, '$.to[0]', 'string')").head()[0] == "a@b"
    assert mails.head().data_json == '{"to":["a@b"]}'
    assert run(*arguments, "--format", "orc").code == 2


def test_a_catalog_stands_for_schemas_and_dead_letters(tmp_path: Path, run: Run) -> None:
    arguments = ["drain", "--url", "sqlite:////q.db", "--queue", "q", "--output", str(tmp_path)]
    for other in (["--schema", "urn:a=b BIGINT"], ["--dead-letter-queue", "d"]):
        assert run(*arguments, "--catalog", str(tmp_path), *other).code == 2


def test_tables_of_a_namespace(spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    namespace = queue.replace("-", "_")
    spark.sql(f"CREATE DATABASE {namespace} LOCATION '{tmp_path}/tables'")
    arguments = ["drain", "--url", sqlite, "--queue", queue, "--namespace", namespace, "--format", "orc"]
    arguments += ["--state", str(tmp_path / "state"), "--schema", f"{ORDERS}=order_id BIGINT"]
    for first in (0, 10):
        publish(sqlite, queue, [envelope(n, queue) for n in range(first, first + 10)])
        assert run(*arguments).code == 0
    orders = spark.table(f"{namespace}.urn_babel_orders_created")
    assert sorted(row.order_id for row in orders.select("data.order_id").collect()) == list(range(20))
    assert orders.select("part").distinct().count() == 2
    spark.sql(f"DROP DATABASE {namespace} CASCADE")


def test_a_batch_that_is_repeated_is_in_the_table_once(
    spark: Any, sqlite: str, queue: str, tmp_path: Path, run: Run
) -> None:
    namespace = queue.replace("-", "_")
    spark.sql(f"CREATE DATABASE {namespace} LOCATION '{tmp_path}/tables'")
    arguments = ["drain", "--url", sqlite, "--queue", queue, "--namespace", namespace]
    arguments += ["--state", str(tmp_path / "state")]
    publish(sqlite, queue, [envelope(n, queue) for n in range(10)])
    assert run(*arguments, "--option", "journalRetention=1h").code == 0
    [committed] = (tmp_path / "state/checkpoint/commits").glob("0")
    committed.unlink()  # as if the driver had died before it wrote this
    committed.with_name(".0.crc").unlink()
    assert run(*arguments, "--option", "journalRetention=1h").code == 0
    assert spark.table(f"{namespace}.urn_babel_orders_created").count() == 10
    spark.sql(f"DROP DATABASE {namespace} CASCADE")


@pytest.mark.parametrize("format", ["delta", "Iceberg"])
def test_a_table_format_needs_a_catalog(format: str, sqlite: str, run: Run) -> None:
    done = run("drain", "--url", sqlite, "--queue", "q", "--output", "/mnt/lake", "--format", format)
    assert done.code == 2
    assert f"--format {format} needs --namespace" in done.err


def test_each_urn_has_a_name_of_its_own_within_the_output() -> None:
    for names, pattern in (
        ([folder_of(urn) for urn in SAME], r"[A-Za-z0-9-][A-Za-z0-9_-]*(\.[0-9a-f]{16})?"),
        ([table_of(urn) for urn in SAME], r"[a-z0-9][a-z0-9_]*"),
    ):
        assert len(set(names)) == len(SAME)
        assert all(re.fullmatch(pattern, name) and name for name in names)
        assert max(map(len, names)) < 200


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_adds_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "babelqueue_spark.jobs", "demo", "--folder", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "the sum is right" in done.stdout
