"""One attempt at a partition, in a process of its own, as a worker of Spark's makes it."""

from __future__ import annotations

import json
from pathlib import Path

import sitecustomize
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition


def read(reader: DataSourceStreamReader, partition: InputPartition, result: Path) -> None:
    """Read the partition with the crash points armed; [queue, body] of each row go into `result` in the end."""
    sitecustomize.arm()
    rows = [
        [row["queue"], row["body"].decode()]
        for batch in reader.read(partition)
        for row in batch.select(["queue", "body"]).to_pylist()
    ]
    result.write_text(json.dumps(rows))
