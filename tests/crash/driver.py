"""A user's program: one query over several queues, until all messages have arrived.

Run as a process of its own: `driver.py URL EXPECTED PARTITIONS FOLDER QUEUE…`; EXPECTED is how many in all. Each
micro-batch becomes `<folder>/out/<batch>.json` ([queue, body] of each row), written whole, so that a replay
replaces it; each attempt is also kept under `<folder>/attempts/`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import sitecustomize
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.brokers import short_claims
from tests.crash.program import session
from tests.streams import left, started_again

SECONDS = 200


def main(url: str, expected: int, partitions: str, folder: Path, queues: list[str]) -> None:
    for name in ("out", "attempts"):
        (folder / name).mkdir(exist_ok=True)
    spark = session()
    arrived = {int(path.stem): len(json.loads(path.read_text())) for path in (folder / "out").glob("*.json")}
    query = read(spark, url, partitions, folder, queues, arrived)
    moment, deadline = threading.Event(), time.monotonic() + SECONDS
    while (
        sum(arrived.values()) < expected or any(left(url, queue, **short_claims(url)) for queue in queues)
    ) and time.monotonic() < deadline:
        if not query.isActive:
            query = started_again(query, lambda: read(spark, url, partitions, folder, queues, arrived))
        moment.wait(0.05)
    query.awaitTermination(1)
    query.stop()


def read(
    spark: SparkSession,
    url: str,
    partitions: str,
    folder: Path,
    queues: list[str],
    arrived: dict[int, int],
) -> StreamingQuery:
    """The query; `arrived` is the messages of each batch."""

    def each(frame: Any, number: int) -> None:
        found = [[row.queue, bytes(row.body).decode()] for row in frame.select("queue", "body").collect()]
        (folder / "attempts" / f"{number}-{uuid.uuid4().hex}.json").write_text(json.dumps(found))
        temporary = folder / f"{number}.tmp"
        temporary.write_text(json.dumps(found))
        temporary.replace(folder / "out" / f"{number}.json")
        arrived[number] = len(found)
        for queue in queues:
            sitecustomize.reached("in foreachBatch", queue)

    return (
        spark.readStream.format("babelqueue")
        .options(
            url=url,
            queue=",".join(queues),
            journalLocation=str(folder / "journal"),
            numPartitions=partitions,
            maxMessagesPerTrigger=str(2000 * len(queues)),
            **short_claims(url),
        )
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5:])
