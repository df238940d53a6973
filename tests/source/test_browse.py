"""`spark.read`: look at queues without consuming."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams import backlog, envelope, numbers, publish

pytestmark = pytest.mark.spark


def test_browse_keeps_order_and_consumes_nothing(spark: Any, url: str, queue: str) -> None:
    publish(url, queue, (envelope(n) for n in range(3000)))
    frame = spark.read.format("babelqueue").options(url=url, queue=queue).load()
    assert numbers(frame.collect()) == list(range(3000))
    assert numbers(frame.collect()) == list(range(3000))
    assert backlog(url, queue) == 3000


def test_several_queues_are_told_apart(spark: Any, url: str, queue: str) -> None:
    publish(url, f"{queue}-a", [envelope(1)])
    publish(url, f"{queue}-b", [envelope(2), envelope(3)])
    frame = spark.read.format("babelqueue").options(url=url, queue=f"{queue}-a,{queue}-b").load()
    assert {row.queue: row["count"] for row in frame.groupBy("queue").count().collect()} == {
        f"{queue}-a": 1,
        f"{queue}-b": 2,
    }


def test_registered_by_hand_it_is_the_same(spark: Any, url: str, queue: str) -> None:
    from babelqueue_spark import BabelQueueDataSource

    publish(url, queue, [envelope(1)])
    spark.dataSource.register(BabelQueueDataSource)
    assert spark.read.format("babelqueue").options(url=url, queue=queue).load().count() == 1


def test_an_empty_queue_gives_no_rows(spark: Any, url: str, queue: str) -> None:
    assert spark.read.format("babelqueue").options(url=url, queue=queue).load().count() == 0
