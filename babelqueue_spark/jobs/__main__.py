"""Message queues and Spark on the command line.

    babelqueue-spark JOB --help

Jobs:

    drain         a queue to Parquet, another file format, or tables of a catalog
    publish       JSON lines, files or a table to a queue
    bridge        a queue of any broker to a queue of any broker
    dead-letters  what is in a dead-letter queue, and why: a table, a page, JSON
    redrive       dead letters back to where they came from
    release       the messages of a schedule that are due; what waits; cancel
    events        an event store: make it, describe, export, follow and replay it
    relay         the rows of a transactional outbox to a broker
    recover       claims of readers that died on Redis, back to their queue
    tail          the messages of a queue as they come, without consuming them
    serve         queues, dead letters and queries on a web page of this machine
    catalog       schemas by URN: propose them from a queue, check a queue, compare two versions
    doctor        checks of an installation, a broker, a journal, a cluster: OK, or what to do
    bench         messages a second into a queue of a broker, and out of it
    demo          all of it in a minute, on a queue in a file

Each is a file for spark-submit too, in the folder that `--files` prints: `drain.py` and so on. Options may
stand in a file: `@FILE`, a line an option, `#` before a comment. A broker's password is given by reference:
`--url env:ORDERS_URL`, or `file:/run/secrets/orders`. `babelqueue-spark completion bash` prints what makes a
shell complete jobs and options; `--version` prints the version.
"""

import ast
import difflib
import sys
from importlib import import_module
from pathlib import Path

from babelqueue_spark import __version__
from babelqueue_spark.errors import MissingPackageError
from babelqueue_spark.packages import brought_by

JOBS = (
    "drain",
    "publish",
    "bridge",
    "dead-letters",
    "redrive",
    "release",
    "events",
    "relay",
    "recover",
    "tail",
    "serve",
    "catalog",
    "doctor",
    "bench",
    "demo",
)
_COMMANDS = (*JOBS, "completion")


def main(arguments: list[str] | None = None) -> int:
    """Run the job that the first argument names; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("--help", "-h"):
        print(__doc__, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"babelqueue-spark {__version__}")
        return 0
    if words[0] == "--files":
        print(Path(__file__).parent)
        return 0
    name = words[0].replace("_", "-")
    if name not in _COMMANDS:
        print(f"babelqueue-spark: {_unknown(name)}", file=sys.stderr)
        return 2
    try:
        if name != "doctor":  # it says what is missing
            import_module("babelqueue_spark.needs_spark")
        with brought_by("jobs", name, "rich", "jinja2", "matplotlib", "shtab"):
            job = import_module(f"babelqueue_spark.jobs.{name.replace('-', '_')}")
    except MissingPackageError as error:
        if {"--help", "-h"} & {*words}:
            print(f"{_about(name)}\n\nIts options are shown once {error}")
            return 0
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return int(job.main(words[1:]))


def _about(name: str) -> str | None:
    file = Path(__file__).with_name(f"{name.replace('-', '_')}.py")
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(JOBS)}, or --help"
    return f"'{name}' is not a job: {hint}"


if __name__ == "__main__":
    sys.exit(main())
