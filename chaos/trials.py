"""Large amounts of what is hard, each measured once: queues, poison, a body, a journal to clean.

python -m chaos.trials FOLDER RESULT
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from babelqueue_spark.journal import Journal
from chaos.messages import body
from tests.servers import RedisServer
from tests.streams import envelope, publish

QUEUES, IN_EACH = 200, 50
POISON = 100_000
BODY = 100_000_000
SEGMENTS = 100_000


class Peak:
    """As a context manager: the most memory that one Python process of Spark's had meanwhile, in MiB."""

    def __init__(self) -> None:
        self.mib = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "python" in process.name():
                        self.mib = max(self.mib, process.memory_info().rss / 2**20)
                except psutil.NoSuchProcess:
                    continue


def drain(spark: SparkSession, url: str, queues: str, folder: Path, *measures: str) -> list[Any]:
    """Run a query over what is there; SQL measures of each batch."""
    found: list[Any] = []

    def each(frame: Any, _: int) -> None:
        found.append(tuple(frame.selectExpr(*measures).first()))

    query = (
        spark.readStream.format("babelqueue")
        .options(url=url, queue=queues, journalLocation=f"{folder}/journal")
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def measured(what: str, work: Callable[[], Any], right: Callable[[Any], bool]) -> dict[str, Any]:
    """Seconds and memory of a piece of work, and whether what it found is right."""
    with Peak() as peak:
        began = time.monotonic()
        found = work()
        seconds = time.monotonic() - began
    return {"trial": what, "seconds": round(seconds, 1), "mib": round(peak.mib), "right": right(found)}


def queues(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """Many queues in one query."""
    names = [f"soak-{number}" for number in range(QUEUES)]
    for name in names:
        publish(url, name, (envelope(number, name) for number in range(IN_EACH)))
    what = f"{QUEUES} queues with {IN_EACH} messages each"
    measures = ("count(*)", "count(DISTINCT queue)")
    return measured(
        what,
        lambda: drain(spark, url, ",".join(names), folder, *measures),
        lambda found: sum(count for count, _ in found) == QUEUES * IN_EACH,
    )


def poison(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """A flood of messages that are no envelopes: each is a row with a reason, and all its bytes."""
    contents = [body(0, "poison") + b" " * (number % 7) for number in range(POISON)]
    publish(url, "poison", contents)
    size = sum(map(len, contents))
    return measured(
        f"{POISON:,} invalid messages",
        lambda: drain(spark, url, "poison", folder, "count(error)", "coalesce(sum(length(body)), 0)"),
        lambda found: [sum(column) for column in zip(*found, strict=True)] == [POISON, size],
    )


def large(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """One message with a body of 100 MB: its row has it twice, as `body` and as `data`."""
    content = envelope(1, "large", data={"n": 1, "text": "x" * BODY})
    publish(url, "large", [content])
    return measured(
        f"a body of {BODY // 1_000_000} MB",
        lambda: drain(spark, url, "large", folder, "sum(length(body))", "count(error)"),
        lambda found: [each for each in found if each[0]] == [(len(content), 0)],
    )


def journal(_: SparkSession, __: str, folder: Path) -> dict[str, Any]:
    """A journal that retention has filled, and that is then cleaned by one commit."""
    made = Journal(f"{folder}/journal")
    _id = made.id
    for number in range(1, SEGMENTS + 1):
        batch = folder / "journal" / "batches" / f"{number:010d}"
        batch.mkdir(parents=True)
        (batch / "plan.json").write_text('{"planned_at": 0}')
        (batch / "00000.arrow").write_bytes(bytes(1000))
        (batch / "00000.ack").write_text("{}")
    commits = folder / "journal" / "commits"
    commits.mkdir(exist_ok=True)
    (commits / f"{SEGMENTS:010d}").write_text('{"cleaned": 0, "unacknowledged": {}}')

    def clean() -> int:
        owner = Journal(f"{folder}/journal")
        owner.take_over()
        owner.record_plan(SEGMENTS + 1, {"planned_at": time.time()})
        owner.commit(SEGMENTS + 1)
        return sum(1 for _ in folder.glob("journal/batches/*/*"))

    found = measured(f"a journal with {SEGMENTS:,} segments, cleaned", clean, lambda left: left <= 1)
    return {**found, "mib": 0}  # no process of Spark's had a part in it


def main(folder: Path, result: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")  # the usual 1 GiB is too small for a row of 200 MB
        .getOrCreate()
    )
    found = []
    with RedisServer() as server:
        for trial in (queues, poison, large, journal):
            place = folder / trial.__name__
            place.mkdir()
            found.append(trial(spark, server.url, place))
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
