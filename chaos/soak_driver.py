"""The user's program of `make soak`: a stream with a trigger of one second, into Parquet.

    python -m chaos.soak_driver DESCRIPTION

It notes, of each batch, the moments at which its messages were published.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from chaos.notes import note


def each(folder: Path, frame: Any, number: int) -> None:
    """Write a batch, and note when its messages were published."""
    frame.write.mode("overwrite").parquet(f"{folder}/table/batch={number % 100}")
    times = [row[0] for row in frame.selectExpr("CAST(get_json_object(data, '$.at') AS DOUBLE)").collect()]
    note(folder / "batches", [number, times])


def main(description: Path) -> None:
    given = json.loads(description.read_text())
    folder = Path(given["folder"])
    spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    query = (
        spark.readStream.format("babelqueue")
        .options(**given["options"], url=given["url"], queue=given["queue"])
        .option("journalLocation", f"{folder}/journal")
        .load()
        .writeStream.foreachBatch(partial(each, folder))
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    while not (folder / "stop-driver").exists() and query.isActive:
        time.sleep(0.2)
    if error := query.exception():
        raise error
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
