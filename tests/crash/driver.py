"""A user's program: reads queues, one after the other, until it has seen `expected` messages of each.

Run as a process of its own: `driver.py URL EXPECTED FOLDER…`; the name of a folder is its queue's. Each
micro-batch becomes `<folder>/out/<batch>.json`, written whole, so that a replay replaces it; each attempt
is also kept under `<folder>/attempts/`. Where `<folder>/point` exists, the crash is armed with it. A folder
that was read to its end is marked as `finished`, and passed over by the next run.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import sitecustomize
from pyspark.sql import SparkSession

from tests.brokers import short_claims
from tests.streams import backlog

SECONDS = 90


def main(url: str, expected: int, folders: list[Path]) -> None:
    os.environ["CRASH_GROUP"] = str(os.getpid())
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for folder in folders:
        if (folder / "finished").exists():
            continue
        if (folder / "point").exists():
            (folder / "point").rename(os.environ["CRASH_CONTROL"])
        read(spark, url, expected, folder)
        (folder / "finished").touch()


def read(spark: SparkSession, url: str, expected: int, folder: Path) -> None:
    for name in ("out", "attempts"):
        (folder / name).mkdir(exist_ok=True)

    def each(frame: Any, number: int) -> None:
        bodies = [bytes(row.body).decode() for row in frame.select("body").collect()]
        (folder / "attempts" / f"{number}-{uuid.uuid4().hex}.json").write_text(json.dumps(bodies))
        temporary = folder / f"{number}.tmp"
        temporary.write_text(json.dumps(bodies))
        temporary.replace(folder / "out" / f"{number}.json")
        sitecustomize.reached("in foreachBatch")

    query = (
        spark.readStream.format("babelqueue")
        .options(
            url=url,
            queue=folder.name,
            journalLocation=str(folder / "journal"),
            numPartitions="2",
            maxMessagesPerTrigger="4000",
            **short_claims(url),
        )
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    deadline = time.monotonic() + SECONDS
    while (
        arrived(folder) < expected or backlog(url, folder.name, **short_claims(url))
    ) and time.monotonic() < deadline:
        query.awaitTermination(0.05)
        if query.exception():
            raise query.exception()
    query.awaitTermination(1)
    query.stop()


def arrived(folder: Path) -> int:
    return sum(len(json.loads(path.read_text())) for path in (folder / "out").glob("*.json"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
