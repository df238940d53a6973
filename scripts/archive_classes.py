"""Archive the classes that Spark loads for a stream: the JVMs of tests that follow start with them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main(archive: str) -> None:
    """Run a small query on a queue of its own, in a JVM that writes the archive when it ends."""
    Path(archive).unlink(missing_ok=True)
    options = ["-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable"]
    os.environ["JDK_JAVA_OPTIONS"] = " ".join(options)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        _stream(folder)


def _stream(folder: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    queue = {"url": f"sqlite:///{folder}/queue.db", "queue": "orders"}
    rows = spark.range(3).selectExpr("'urn:babel:orders:created' AS job", "to_json(struct(id)) AS data")
    rows.write.format("babelqueue").options(**queue).mode("append").save()
    read: list[Any] = []
    (
        spark.readStream.format("babelqueue")
        .options(journalLocation=f"{folder}/journal", **queue)
        .load()
        .writeStream.foreachBatch(lambda frame, _: read.extend(frame.collect()))
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    if len(read) != 3:
        raise RuntimeError(f"3 messages were written and {len(read)} read")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
