"""A query whose journal cannot be reached for a while goes on by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.testing import eventually
from tests.s3 import S3Server
from tests.streams import WAIT, backlog, envelope, numbers, publish, stream

pytestmark = pytest.mark.spark


@pytest.fixture
def store() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_query_outlives_an_outage_of_its_object_store(
    spark: Any, store: S3Server, queue: str, tmp_path: Path, seconds: int
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    journal = {
        "journalLocation": f"s3://{store.bucket}/{queue}",
        "journal.endpoint": store.url,
        "journal.region": "us-east-1",
        "journal.access_key_id": "test",
        "journal.secret_access_key": "test",
    }
    found: Counter[int] = Counter()
    query = (
        stream(spark, url, queue, tmp_path, **journal)
        .writeStream.foreachBatch(lambda frame, _: found.update(numbers(frame.collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        publish(url, queue, map(envelope, range(10)))
        eventually(lambda: len(found) == 10, patience=WAIT)
        store.stop()
        try:
            publish(url, queue, map(envelope, range(10, 20)))
            time.sleep(seconds)
            assert len(found) == 10
        finally:
            store.start()
        eventually(lambda: len(found) == 20, patience=WAIT)
        assert query.exception() is None
    finally:
        query.stop()
    assert found == Counter(range(20))
    assert backlog(url, queue) == 0
