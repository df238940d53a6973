"""What PySpark 4.2 brought to checkpoints: names of sources, the second format of offsets, a check of their metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.streams import backlog, envelope, numbers, publish, run, stream

pytestmark = pytest.mark.spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def evolving(spark: Any) -> Any:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    session.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    return session


def named(session: Any, url: str, queue: str, folder: Path) -> Any:
    reader = session.readStream.format("babelqueue").name(queue)
    return reader.options(url=url, queue=queue, journalLocation=str(folder / f"{queue}-journal")).load()


def read(frame: Any, folder: Path) -> list[int]:
    """The numbers of the messages that a query of this checkpoint has read now."""
    rows: list[Any] = []
    run(frame, folder, lambda batch, _: rows.extend(batch.collect()))
    return sorted(numbers(rows))


def test_a_query_gains_a_named_source_and_keeps_its_checkpoint(
    evolving: Any, url: str, tmp_path: Path
) -> None:
    orders = named(evolving, url, "orders", tmp_path)
    publish(url, "orders", [envelope(1), envelope(2)])
    assert read(orders, tmp_path) == [1, 2]

    publish(url, "orders", [envelope(3)])
    publish(url, "mails", [envelope(4)])
    both = named(evolving, url, "mails", tmp_path).union(orders)
    assert read(both, tmp_path) == [3, 4]
    assert read(both, tmp_path) == []
    assert {
        file.read_text().partition("\n")[0] for file in (tmp_path / "checkpoint/offsets").glob("[0-9]*")
    } == {"v2"}


def test_without_its_metadata_a_checkpoint_takes_nothing_from_the_queue(
    spark: Any, url: str, tmp_path: Path
) -> None:
    publish(url, "orders", [envelope(1)])
    assert read(stream(spark, url, "orders", tmp_path), tmp_path) == [1]
    publish(url, "orders", [envelope(2)])
    metadata = tmp_path / "checkpoint/metadata"
    kept = metadata.read_text()
    metadata.unlink()
    with pytest.raises(Exception, match="STREAMING_CHECKPOINT_MISSING_METADATA_FILE"):
        read(stream(spark, url, "orders", tmp_path), tmp_path)
    assert backlog(url, "orders") == 1

    metadata.write_text(kept)
    assert json.loads(kept)["id"]
    assert read(stream(spark, url, "orders", tmp_path), tmp_path) == [2]
