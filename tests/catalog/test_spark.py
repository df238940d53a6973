"""The catalog in reads, writes, column functions and the worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark import functions as bq
from babelqueue_spark.catalog import Catalog
from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker import Worker
from tests.brokers import url_of
from tests.catalog.registries import MAIL, MAILS, ORDER, ORDERS, registry
from tests.exchange.schedules import messages
from tests.programs import run as run_program
from tests.streams import backlog, envelope, publish, run, stream

pytestmark = pytest.mark.spark

VIOLATION = "order_id: not_an_integer"


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of("sqlite", request, tmp_path)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(registry(tmp_path / "registry", {ORDERS: ORDER, MAILS: MAIL}))


def test_the_violation_of_a_column(spark: Any, location: str) -> None:
    rows = [
        (1, ORDERS, '{"order_id":1}'),
        (2, ORDERS, '{"order_id":"1"}'),
        (3, MAILS, '{"to":""}'),
        (4, "urn:other", "{}"),
        (5, ORDERS, None),
    ]
    frame = spark.createDataFrame(rows, "n INT, job STRING, data STRING")
    expected = [None, VIOLATION, "to: below_min_length", None, None]
    for catalog in (location, Catalog(location)):
        found = frame.select("n", bq.violation("job", "data", catalog)).orderBy("n").collect()
        assert [row.violation for row in found] == expected


@pytest.mark.parametrize(
    "schema", [None, "body BINARY, data STRUCT<order_id BIGINT>, error STRING, violation STRING"]
)
def test_a_read_names_the_violation_beside_the_error(
    spark: Any, url: str, queue: str, location: str, schema: str | None
) -> None:
    bodies = [envelope(1), envelope(1, data={"order_id": "1"}), envelope(1, job="urn:other"), b"bad"]
    publish(url, queue, bodies)
    reader = spark.read.format("babelqueue").options(url=url, queue=queue, catalog=location)
    rows = (reader.schema(schema) if schema else reader).load().collect()
    assert [(row.error, row.violation) for row in rows] == [
        (None, None),
        ("invalid_payload", VIOLATION),
        (None, None),
        ("poison", None),
    ]
    assert [bytes(row.body) for row in rows] == bodies
    assert json.loads(rows[1].data) == {"order_id": "1"} if schema is None else rows[0].data.order_id == 1


def test_a_stream_names_the_violation_and_a_write_takes_its_rows(
    spark: Any, url: str, queue: str, location: str, tmp_path: Path
) -> None:
    publish(url, queue, [envelope(1), envelope(1, data={})])
    found: list[Any] = []

    def each(batch: Any, _: int) -> None:
        found.extend(batch.select("error", "violation").collect())
        good = batch.where("error IS NULL").drop("dead_letter").withColumn("queue", bq.lit(f"{queue}-b"))
        good.write.format("babelqueue").options(url=url).mode("append").save()

    run(stream(spark, url, queue, tmp_path, catalog=location), tmp_path, each)
    assert sorted(map(tuple, found), key=str) == [
        ("invalid_payload", "order_id: missing_required"),
        (None, None),
    ]
    assert backlog(url, f"{queue}-b") == 1


def test_without_a_catalog_there_is_no_violation(spark: Any, url: str, queue: str) -> None:
    reader = spark.read.format("babelqueue").options(url=url, queue=queue)
    assert "violation" not in reader.load().columns
    with pytest.raises(Exception, match="schema asks for a column 'violation'"):
        reader.schema("violation STRING").load().collect()


def test_a_catalog_that_is_not_there(spark: Any, url: str, queue: str, tmp_path: Path) -> None:
    reader = spark.read.format("babelqueue").options(url=url, queue=queue, catalog=str(tmp_path / "none"))
    with pytest.raises(Exception, match=r"\[BABELQUEUE_INVALID_OPTION\] catalog .*there is no file none"):
        reader.load()


def test_a_write_refuses_a_payload_before_anything_of_its_partition_is_sent(
    spark: Any, url: str, queue: str, location: str
) -> None:
    rows = [(ORDERS, f'{{"order_id":{n}}}') for n in range(1, 3000)] + [(ORDERS, '{"order_id":"x"}')]
    frame = spark.createDataFrame(rows, "job STRING, data STRING").coalesce(1)
    writer = frame.write.format("babelqueue").options(url=url, queue=queue, catalog=location).mode("append")
    with pytest.raises(
        Exception, match=f"row 2999 has a payload that the catalog refuses: {ORDERS}: {VIOLATION}"
    ):
        writer.save()
    assert backlog(url, queue) == 0
    good = frame.limit(2999).coalesce(1)
    good.write.format("babelqueue").options(url=url, queue=queue, catalog=location).mode("append").save()
    assert [message["data"]["order_id"] for message in messages(url, queue)] == list(range(1, 3000))


def test_a_dead_letter_is_written_whatever_its_payload(
    spark: Any, url: str, queue: str, location: str
) -> None:
    publish(url, queue, [envelope(1, data={})])
    read = spark.read.format("babelqueue").options(url=url, queue=queue, catalog=location).load()
    letters = read.selectExpr("body", "queue", "struct(error AS reason, violation AS error) AS dead_letter")
    letters.write.format("babelqueue").options(url=url, catalog=location).mode("append").save()
    [letter] = messages(url, f"{queue}.dlq")
    assert letter["dead_letter"]["reason"] == "invalid_payload"
    assert letter["dead_letter"]["error"] == "order_id: missing_required"


@pytest.mark.parametrize("where", ["worker", "read"])
def test_a_worker_dead_letters_what_violates_its_schema(
    spark: Any, url: str, queue: str, location: str, tmp_path: Path, where: str
) -> None:
    bad = envelope(1, queue, data={"order_id": "1"})
    publish(url, queue, [envelope(1, queue), bad])
    worker = Worker({"url": url}, state=str(tmp_path / "w"), catalog=location if where == "worker" else None)
    handled = tmp_path / "handled"

    @worker.handler("*")
    def handle(message: Any) -> None:
        handled.write_text(message.body.decode())

    given = {"catalog": location} if where == "read" else {}
    run(stream(spark, url, queue, tmp_path, **given), tmp_path, worker)
    assert (worker.counts.acked, worker.counts.dead_lettered) == (1, 1)
    assert json.loads(handled.read_text())["data"] == {"order_id": 1}
    [letter] = messages(url, f"{queue}.dlq")
    block = letter.pop("dead_letter")
    assert (block["reason"], block["error"]) == ("invalid_payload", f"the payload was refused: {VIOLATION}")
    assert letter == json.loads(bad)


def test_a_dataframe_handler_does_not_get_it(
    spark: Any, url: str, queue: str, location: str, tmp_path: Path
) -> None:
    publish(url, queue, [envelope(1, queue), envelope(1, queue, data={})])
    worker = Worker({"url": url}, state=str(tmp_path / "w"), catalog=Catalog(location))
    seen: list[Any] = []

    @worker.dataframe_handler("*")
    def handle(frame: Any, _: int) -> None:
        seen.extend(frame.collect())

    run(stream(spark, url, queue, tmp_path), tmp_path, worker)
    assert [row.data for row in seen] == ['{"order_id":1}']
    assert worker.counts.dead_lettered == 1


def test_a_worker_with_a_catalog_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no file"):
        Worker({"url": "sqlite:////q.db"}, state="/mnt/journal", catalog=str(tmp_path / "none.json"))


@pytest.mark.slow
def test_the_violation_over_connect(location: str) -> None:
    program = f"""
from pyspark.sql import SparkSession
from babelqueue_spark import functions as bq
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.createDataFrame([("{ORDERS}", "{{}}")], "job STRING, data STRING")
assert rows.select(bq.violation("job", "data", "{location}")).head()[0] == "order_id: missing_required"
spark.stop()
"""
    run_program(program)
