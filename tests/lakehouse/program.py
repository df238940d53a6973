"""A user's program: recipes of docs/lakehouse.md, until all messages are in their tables.

Run as a process of its own: `program.py READINGS COMMIT`. READINGS is a JSON object: recipe → url, folder, queues, and
expected (messages in all). COMMIT is a recipe, or nothing: all is killed when its table has a commit that Spark's
checkpoint has not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import sitecustomize
from pyspark.sql import DataFrameWriter

from tests.crash.arrivals import SECONDS
from tests.lakehouse import page, tables
from tests.lakehouse.tables import BETWEEN_TABLES
from tests.streams import left, short_claims, started_again


def main(readings: str, commit: str) -> None:
    given = json.loads(readings)
    os.environ["CRASH_GROUP"] = str(os.getpid())
    folder = Path(next(iter(given.values()))["folder"])
    spark = page.session(folder)
    spark.sparkContext.setLogLevel("OFF")
    if "tables" in given:
        _stand_between_tables(given["tables"]["queues"])
    counted = {recipe: tables.commits(recipe, folder) for recipe in given}
    starts = {recipe: partial(_start, recipe, spark, **reading) for recipe, reading in given.items()}
    queries = {recipe: start() for recipe, start in starts.items()}
    if commit:
        _kill_after_commit(commit, folder, counted[commit])
    moment, deadline = threading.Event(), time.monotonic() + SECONDS
    while not all(_complete(recipe, spark, **reading) for recipe, reading in given.items()):
        assert time.monotonic() < deadline, "the messages did not arrive"
        for recipe, query in queries.items():
            if not query.isActive:
                queries[recipe] = started_again(query, starts[recipe])
        moment.wait(0.5)
    for query in queries.values():
        query.processAllAvailable()
        query.stop()


def _start(recipe: str, spark: Any, url: str, folder: str, queues: list[str], expected: int) -> Any:
    partitions = {"numPartitions": str(len(queues)), **short_claims(url)}
    return page.start(recipe, spark, url, queues, Path(folder), **partitions)


def _complete(recipe: str, spark: Any, url: str, folder: str, queues: list[str], expected: int) -> bool:
    if any(left(url, queue, **short_claims(url)) for queue in queues) or not tables.exist(
        recipe, Path(folder)
    ):
        return False
    return tables.bodies(spark, recipe, Path(folder)).total() >= expected


def _stand_between_tables(queues: list[str]) -> None:
    save = DataFrameWriter.save

    def wrapped(*args: Any, **kwargs: Any) -> None:
        save(*args, **kwargs)
        for queue in queues:
            sitecustomize.reached(BETWEEN_TABLES, queue)

    DataFrameWriter.save = wrapped  # type: ignore[method-assign]


def _kill_after_commit(recipe: str, folder: Path, known: int) -> None:
    """Stop Spark's JVM when the table has another commit, and kill all if its checkpoint has not."""
    commits = folder / "streams" / recipe / "checkpoint/commits"
    jvm = int(subprocess.check_output(["pgrep", "-P", str(os.getpid()), "java"], text=True))
    finished = _finished(commits)
    moment, deadline = threading.Event(), time.monotonic() + SECONDS
    while tables.commits(recipe, folder) == known:
        assert time.monotonic() < deadline, "the table got no commit"
        moment.wait(0.001)
    os.kill(jvm, signal.SIGSTOP)
    assert _finished(commits) == finished, "Spark was faster than this program"
    os.killpg(os.getpid(), signal.SIGKILL)


def _finished(commits: Path) -> int:
    return len([path for path in commits.glob("*") if path.name.isdecimal()])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
