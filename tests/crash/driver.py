"""A user's program: reads a queue until it has seen `expected` messages. Run as a process of its own.

Each micro-batch becomes `out/<batch>.json`, written whole, so that a replay replaces it; each attempt
is also kept under `attempts/`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def main(url: str, queue: str, folder: Path, expected: int) -> None:
    os.environ["CRASH_GROUP"] = str(os.getpid())
    for name in ("out", "attempts"):
        (folder / name).mkdir(exist_ok=True)
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def each(frame: Any, number: int) -> None:
        bodies = [bytes(row.body).decode() for row in frame.select("body").collect()]
        (folder / "attempts" / f"{number}-{uuid.uuid4().hex}.json").write_text(json.dumps(bodies))
        temporary = folder / f"{number}.tmp"
        temporary.write_text(json.dumps(bodies))
        temporary.replace(folder / "out" / f"{number}.json")
        if os.environ.get("CRASH_POINT") == "in foreachBatch":
            import sitecustomize

            sitecustomize._die()

    query = (
        spark.readStream.format("babelqueue")
        .options(
            url=url,
            queue=queue,
            journalLocation=str(folder / "journal"),
            visibilityTimeout="2s",
            numPartitions="2",
            maxMessagesPerTrigger="4000",
        )
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    deadline = time.monotonic() + 90
    while arrived(folder) < expected and time.monotonic() < deadline:
        query.awaitTermination(0.1)
        if query.exception():
            raise query.exception()
    query.awaitTermination(1)
    query.stop()


def arrived(folder: Path) -> int:
    return sum(len(json.loads(path.read_text())) for path in (folder / "out").glob("*.json"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
