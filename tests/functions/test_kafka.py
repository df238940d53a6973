"""Rows of Spark's own Kafka source and sink, to our columns and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.errors import OptionError
from babelqueue_spark.spark_kafka import from_kafka, to_kafka
from tests.streams import envelope

pytestmark = pytest.mark.spark

ROWS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def rows(spark: Any, *values: tuple[bytes | None, dict[str, bytes] | None]) -> Any:
    made = [
        (b"k", value, "orders", 2, offset, MOMENT, headers and [*headers.items(), *headers.items()])
        for offset, (value, headers) in enumerate(values)
    ]
    return spark.createDataFrame(made, ROWS)


def test_rows_have_the_columns_of_a_read(spark: Any) -> None:
    body = envelope(7, attempts=5)
    found = from_kafka(rows(spark, (body, {"bq-attempts": b"2", "x": b"y"})))
    assert found.columns == SCHEMA.fieldNames()
    [row] = found.collect()
    assert (row.job, row.attempts, row.error, row.queue) == ("urn:babel:orders:created", 2, None, "orders")
    assert (bytes(row.body), row.headers) == (body, {"bq-attempts": "2", "x": "y"})
    assert (row.delivery.id, row.delivery.key) == ("2:0", "k")


@pytest.mark.parametrize(
    ("named", "attempts"), [(None, 5), (b"x", 5), (b"99999999999", 5), (b"007", 7), (b"0", 0)]
)
def test_the_header_counts_where_it_is_a_number(spark: Any, named: bytes | None, attempts: int) -> None:
    given = {"bq-attempts": named} if named is not None else None
    [row] = from_kafka(rows(spark, (envelope(1, attempts=5), given))).collect()
    assert row.attempts == attempts


def test_tombstones_are_rows_with_a_reason(spark: Any) -> None:
    [row] = from_kafka(rows(spark, (None, None)).drop("headers")).collect()
    assert (row.error is None, bytes(row.body), row.headers) == (False, b"", None)


def test_data_can_be_typed(spark: Any) -> None:
    [row] = from_kafka(rows(spark, (envelope(7), None)), "order_id BIGINT").collect()
    assert row.data.order_id == 7


def test_messages_become_rows_of_the_sink(spark: Any) -> None:
    given = [("urn:x", '{"n":1}', "k", {"traceparent": "00-1", "bq-job": "forged"}, 3)]
    frame = spark.createDataFrame(
        given, "job string, data string, key string, headers map<string,string>, attempts int"
    )
    [row] = to_kafka(frame, "orders").collect()
    body = json.loads(row.value)
    headers = {header.key: bytes(header.value).decode() for header in row.headers}
    assert (row.topic, bytes(row.key), body["meta"]["queue"], body["attempts"]) == (
        "orders",
        b"k",
        "orders",
        3,
    )
    assert headers == {
        "traceparent": "00-1",
        "bq-job": "urn:x",
        "bq-trace-id": body["trace_id"],
        "bq-message-id": body["meta"]["id"],
        "bq-schema-version": "1",
        "bq-source-lang": "python",
        "bq-attempts": "3",
    }
    [back] = from_kafka(rows(spark, (bytes(row.value), None))).collect()
    assert (back.job, back.data, back.meta.id) == ("urn:x", '{"n":1}', body["meta"]["id"])


@pytest.mark.parametrize(
    ("columns", "topic", "told"),
    [
        ("job string, data string", None, "no row has a topic"),
        ("job string, data string, delay int", "orders", "column 'delay' cannot be written so"),
        ("job string, data string, jbo string", "orders", "column 'jbo' cannot be written so"),
    ],
)
def test_what_cannot_be_written(spark: Any, columns: str, topic: str | None, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        to_kafka(spark.createDataFrame([], columns), topic)
