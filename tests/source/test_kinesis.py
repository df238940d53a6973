"""Kinesis as a stream: Spark's offsets are sequence numbers, and splits and merges of shards lose nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.testing import outgoing
from tests.bindings.test_kinesis import merge, split
from tests.servers.aws import AwsServer
from tests.streams import drain, envelope, numbers, publish

pytestmark = pytest.mark.spark


def fill(aws: AwsServer, queue: str, first: int, last: int) -> None:
    with read_options({"url": aws.url, "queue": queue}).binding() as binding:
        keys = [f"key-{number % 5}" for number in range(first, last)]
        bodies = [envelope(number) for number in range(first, last)]
        binding.publish(queue, outgoing(bodies, keys=keys))


def test_a_stream_reads_each_message_once_over_splits_merges_and_restarts(
    spark: Any, aws_server: AwsServer, queue: str, tmp_path: Path
) -> None:
    found: list[Any] = []
    fill(aws_server, queue, 0, 100)
    found += drain(spark, aws_server.url, queue, tmp_path, maxMessagesPerTrigger=60)
    fill(aws_server, queue, 100, 200)
    split(aws_server, queue)
    fill(aws_server, queue, 200, 300)
    found += drain(spark, aws_server.url, queue, tmp_path)
    merge(aws_server, queue, 1, 2)
    fill(aws_server, queue, 300, 400)
    for _ in range(2):
        found += drain(spark, aws_server.url, queue, tmp_path)
    rows = [row for batch in found for row in batch]
    assert Counter(numbers(rows)) == Counter(range(400))
    for key in {row.delivery.key for row in rows}:
        its = numbers(row for row in rows if row.delivery.key == key)
        assert its == sorted(its)


def test_a_batch_is_as_large_as_maxmessagespertrigger(
    spark: Any, aws_server: AwsServer, queue: str, tmp_path: Path, admission_control: bool
) -> None:
    fill(aws_server, queue, 0, 100)
    found = drain(spark, aws_server.url, queue, tmp_path, maxMessagesPerTrigger=40)
    assert [len(rows) for rows in found] == ([40, 40, 20] if admission_control else [100])


def test_a_query_may_begin_at_the_end(spark: Any, aws_server: AwsServer, queue: str, tmp_path: Path) -> None:
    fill(aws_server, queue, 0, 5)
    assert drain(spark, aws_server.url, queue, tmp_path, startingOffsets="latest") == []
    fill(aws_server, queue, 5, 8)
    [rows] = drain(spark, aws_server.url, queue, tmp_path, startingOffsets="latest")
    assert numbers(rows) == [5, 6, 7]


def test_a_batch_read_takes_sequence_numbers(spark: Any, aws_server: AwsServer, queue: str) -> None:
    fill(aws_server, queue, 0, 10)
    reader = spark.read.format("babelqueue").options(url=aws_server.url, queue=queue)
    rows = reader.load().collect()
    assert numbers(rows) == list(range(10))
    third = rows[2].delivery.id.partition(":")[2]
    after = reader.option("startingOffsets", f'{{"{queue}": {{"0": {third}}}}}').load().collect()
    assert numbers(after) == list(range(3, 10))


def test_what_retention_took_ends_the_query_unless_that_is_allowed(
    spark: Any, aws_server: AwsServer, queue: str, tmp_path: Path
) -> None:
    fill(aws_server, queue, 0, 10)
    drain(spark, aws_server.url, queue, tmp_path)
    fill(aws_server, queue, 10, 20)
    aws_server.trim(queue, 0, 15)
    with pytest.raises(StreamingQueryException, match="BABELQUEUE_DATA_LOSS"):
        drain(spark, aws_server.url, queue, tmp_path)
    [rows] = drain(spark, aws_server.url, queue, tmp_path, failOnDataLoss="false")
    assert numbers(rows) == list(range(15, 20))


def test_firehose_is_written_and_not_read(
    spark: Any, aws_server: AwsServer, queue: str, tmp_path: Path
) -> None:
    aws_server.deliver(queue)
    options = {"url": aws_server.firehose_url, "queue": queue}
    rows = spark.createDataFrame([("urn:babel:orders:created", '{"order_id": 7}')], "job STRING, data STRING")
    rows.write.format("babelqueue").options(**options).mode("append").save()
    [line] = aws_server.delivered(queue)
    assert b'"data":{"order_id": 7}' in line
    with pytest.raises(AnalysisException, match="takes messages and gives none"):
        spark.read.format("babelqueue").options(**options).load().collect()
    with pytest.raises(AnalysisException, match="takes messages and gives none"):
        drain(spark, aws_server.firehose_url, queue, tmp_path)


def test_messages_of_a_queue_without_keys_are_spread(spark: Any, aws_server: AwsServer, queue: str) -> None:
    url = aws_server.url.replace("shard_count=1", "shard_count=4")
    publish(url, queue, (envelope(number) for number in range(100)))
    rows = spark.read.format("babelqueue").options(url=url, queue=queue).load().collect()
    assert {row.delivery.id.partition(":")[0] for row in rows} == {"0", "1", "2", "3"}
