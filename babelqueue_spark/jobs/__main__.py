"""Message queues and Spark on the command line.

    babelqueue-spark JOB --help

Jobs:

    drain         a queue to Parquet, another file format, or tables of a catalog
    publish       JSON lines, files or a table to a queue
    bridge        a queue of any broker to a queue of any broker
    dead_letters  what is in a dead-letter queue, and why: a table, a page, JSON
    redrive       dead letters back to where they came from
    tail          the messages of a queue as they come, without consuming them
    bench         messages a second into a queue of a broker, and out of it
    demo          all of it in a minute, on a queue in a file

Each is a file for spark-submit too: `jobs/drain.py` and so on. Options may stand in a file: `@FILE`, a
line an option, `#` before a comment. A broker's password is given by reference: `--url env:ORDERS_URL`,
or `file:/run/secrets/orders`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

JOBS = ("drain", "publish", "bridge", "dead_letters", "redrive", "tail", "bench", "demo")


def main(arguments: list[str] | None = None) -> int:
    """Run the job that the first argument names; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    name = words[0].replace("-", "_") if words else ""
    if name in ("__help", "_h"):
        print(__doc__)
        return 0
    if name not in JOBS:
        print(__doc__, file=sys.stderr)
        return 2
    _run_here()
    try:
        job = import_module(f"babelqueue_spark.jobs.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "jinja2", "matplotlib"):
            raise
        print(
            f"{name}: needs the Python package '{error.name}': pip install \"babelqueue-spark[jobs]\"",
            file=sys.stderr,
        )
        return 1
    return int(job.main(words[1:]))


def _run_here() -> None:
    """Without spark-submit: this machine's cores, failed tasks tried again, and this Python."""
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[*,4] pyspark-shell")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


if __name__ == "__main__":
    sys.exit(main())
