"""The fixture for tests of pipelines: queues in a file, which Spark's workers see, and the next test does not."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.envelope import validate
from babelqueue_spark.testing.fixtures import LocalBroker
from tests.streams import run


@pytest.mark.parametrize("turn", [1, 2])
def test_a_pipeline_reads_and_writes_queues_of_its_test(
    spark: Any,
    local_broker: LocalBroker,
    turn: int,
) -> None:
    local_broker.publish("orders", "urn:babel:orders:created", {"order_id": 1042}, {"order_id": 1043})
    orders = spark.readStream.format("babelqueue").options(**local_broker.options("orders")).load()

    def write(batch: Any, _: int) -> None:
        rows = batch.selectExpr("'urn:babel:receipts:made' AS job", "data", "trace_id")
        rows.write.format("babelqueue").options(url=local_broker.url, queue="receipts").mode("append").save()

    run(orders, local_broker.folder, write)
    receipts = local_broker.messages("receipts")
    assert sorted(each["data"]["order_id"] for each in receipts) == [1042, 1043]
    assert local_broker.messages("orders") == []


def test_bodies_are_published_as_they_are(local_broker: LocalBroker) -> None:
    local_broker.publish("orders", "urn:babel:orders:created", {"name": "ü"})
    local_broker.publish_bodies("orders", b'{"job":""}', b"no \xff JSON")
    first, second, third = local_broker.messages("orders")
    assert third == b"no \xff JSON"
    assert (first["job"], first["data"], second) == ("urn:babel:orders:created", {"name": "ü"}, {"job": ""})
    assert validate(pa.array([json.dumps(first).encode()], pa.binary())).to_pylist() == [None]
