"""How `availableNow` counts down what was there when it started: the reader's protocol, without Spark's JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.source.stream import QueueStreamReader
from babelqueue_spark.errors import OptionError
from tests.streams import backlog, envelope, publish


class ReadMaxRows:
    """Spark's read limit, as a reader sees it: by the name of its class."""


class ReadAllAvailable:
    """Spark's wish for all that is there, as a reader sees it."""


def reader(url: str, tmp_path: Path, **options: Any) -> QueueStreamReader:
    given = {name: str(value) for name, value in options.items()}
    location = str(tmp_path / "journal")
    return QueueStreamReader(
        read_options({"url": url, "queue": "q", "journalLocation": location, **given}), SCHEMA
    )


def batches_of(spark: QueueStreamReader, limit: Any) -> list[int]:
    """The rows of each batch until there is none, as Spark asks for them."""
    start, sizes = spark.initialOffset(), []
    while (end := spark.latestOffset(start, limit)) != start:
        sizes.append(sum(rows.num_rows for part in spark.partitions(start, end) for rows in spark.read(part)))
        start = end
    spark.stop()
    return sizes


def test_it_ends_after_what_was_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "q", (envelope(n) for n in range(25)))
    spark = reader(url, tmp_path, maxMessagesPerTrigger=10)
    spark.prepareForTriggerAvailableNow()
    publish(url, "q", (envelope(n) for n in range(25, 40)))
    assert batches_of(spark, ReadMaxRows()) == [10, 10, 5]
    assert backlog(url, "q") == 15


def test_it_ends_when_others_took_the_messages(tmp_path: Path) -> None:
    """A batch counts for what it claimed, not for what it planned; one that claimed nothing ends the query."""
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "q", (envelope(n) for n in range(10)))
    spark = reader(url, tmp_path)
    spark.prepareForTriggerAvailableNow()
    start = spark.initialOffset()
    end = spark.latestOffset(start, ReadMaxRows())
    other = reader(url, tmp_path / "other")
    assert batches_of(other, ReadAllAvailable()) == [10]
    assert [rows for part in spark.partitions(start, end) for rows in spark.read(part)] == []
    publish(url, "q", [envelope(10)])
    assert spark.latestOffset(end, ReadMaxRows()) == end
    spark.stop()


def test_a_batch_that_claimed_nothing_ends_its_own_queues(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    for queue in ("a", "b", "c"):
        publish(url, queue, [envelope(1)])
    spark = reader(url, tmp_path, queue="a,b,c", maxMessagesPerTrigger=2)
    spark.prepareForTriggerAvailableNow()
    start = spark.initialOffset()
    end = spark.latestOffset(start, ReadMaxRows())
    planned = [share.queue for claim in spark.partitions(start, end) for share in claim.shares]
    other = reader(url, tmp_path / "other", queue=",".join(planned))
    assert batches_of(other, ReadAllAvailable()) == [2]
    assert [rows for part in spark.partitions(start, end) for rows in spark.read(part)] == []
    [left] = {"a", "b", "c"} - {*planned}
    last = spark.latestOffset(end, ReadMaxRows())
    assert [rows.num_rows for part in spark.partitions(end, last) for rows in spark.read(part)] == [1]
    assert backlog(url, left) == 0
    assert spark.latestOffset(last, ReadMaxRows()) == last
    spark.stop()


def test_a_batch_without_a_limit_takes_the_whole_backlog(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "q", (envelope(n) for n in range(25)))
    assert batches_of(reader(url, tmp_path, maxMessagesPerTrigger=10), ReadAllAvailable()) == [25]


def test_a_queue_that_cannot_be_claimed_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'failed/orders' cannot be read as a stream"):
        reader(f"sqlite:///{tmp_path}/queue.db", tmp_path, queue="orders,failed/orders").initialOffset()
