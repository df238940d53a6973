"""What all jobs share: their command line, their exit codes, their session, what they print."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException, PySparkImportError
from pyspark.sql import SparkSession
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from babelqueue_spark.bindings import Binding, binding_class
from babelqueue_spark.connector.options import Options, write_options
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.jobs.arguments import Arguments, count, option, pair, place, reference
from babelqueue_spark.metrics import log_batches

__all__ = [
    "Arguments",
    "JobError",
    "Numbers",
    "bar",
    "count",
    "job",
    "new_console",
    "observed",
    "of_both",
    "option",
    "pair",
    "place",
    "printable",
    "reason_of",
    "reference",
    "run_here",
    "session",
    "show",
    "spinner",
    "waiting",
]

Job = Callable[..., int]


class JobError(Exception):
    """Something that ends a job, in one line."""


def of_both(options: Mapping[str, str]) -> dict[str, str]:
    """Return those options that reads and writes share: the broker's."""
    return {name: value for name, value in options.items() if name == "broker" or "." in name}


def job(run: Job) -> Job:
    """Return a job's `main`: what goes wrong is one line on standard error, and an exit code."""
    name = Path(inspect.getfile(run)).stem.replace("_", "-")

    @wraps(run)
    def main(arguments: list[str] | None = None) -> int:
        try:
            return run(arguments)
        except (BabelQueueError, PySparkException, JobError, OSError) as error:
            print(f"{name}: {reason_of(error)}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return 130

    return main


def reason_of(error: Exception) -> str:
    """Return the connector's own line out of what Spark wraps around it."""
    text = str(error)
    if isinstance(error, PySparkImportError):
        return f'{text} Spark Connect needs: pip install "babelqueue-spark[connect]"'
    own = re.findall(r"babelqueue_spark\.errors\.\w+: (.+)", text)
    return own[-1] if own else next(iter(text.splitlines()), type(error).__name__)


def waiting(options: Options) -> int:
    """Messages in all the queues of a read."""
    with options.binding() as binding:
        return sum(binding.backlog(queue) for queue in options.queue)


def session(name: str) -> SparkSession:
    """Return the session that is there, or one for a job that shuffles counts only."""
    run_here()
    return SparkSession.getActiveSession() or (
        SparkSession.builder.appName(name)
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def run_here() -> None:
    """Without spark-submit: take this machine's cores, retries of failed tasks, and this Python."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[*,4] pyspark-shell")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextmanager
def observed(
    spark: SparkSession, job: str, where: str | None, queues: Iterable[Mapping[str, str]]
) -> Iterator[None]:
    """Log the batches of a job, and tell Prometheus where `--metrics` says, of queues too."""
    if where is None:
        listener = log_batches(spark)
        try:
            yield
        finally:
            spark.streams.removeListener(listener)
        return
    from babelqueue_spark.metrics import observe  # what it needs is in the extra `metrics`

    polled = [given for given in queues if _can_be_polled(given)]
    with observe(spark, where, queues=polled, job=job):
        yield


def _can_be_polled(given: Mapping[str, str]) -> bool:
    own = {name: value for name, value in given.items() if name in ("url", "broker")}
    kind = binding_class(write_options(own).broker)
    return issubclass(kind, Binding) and not kind.capabilities.intrusive_backlog


class Numbers(RegexHighlighter):
    """Numbers in one colour, thousands separators included."""

    base_style = "repr."
    highlights = (r"(?P<number>\b\d[\d,.]*\b)",)


def new_console(**settings: Any) -> Console:
    """Make a console for what jobs print."""
    return Console(highlighter=Numbers(), **settings)


def bar(console: Console, total: int | None) -> Progress:
    """Return a progress bar; silent where the output is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal or total == 0,
    )


def spinner(console: Console, text: str) -> AbstractContextManager[object]:
    """Return what is shown while work of unknown length is done; silent where the output is no terminal."""
    return console.status(text) if console.is_terminal else nullcontext()


def show(console: Console, headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table; numbers to the right, with separators."""
    table = Table()
    lines = [list(row) for row in rows]
    for index, heading in enumerate(headings):
        numbers = all(isinstance(line[index], int) for line in lines)
        table.add_column(heading, justify="right" if numbers and lines else "left", overflow="fold")
    for line in lines:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else Text(printable(cell)) for cell in line))
    console.print(table)


def printable(cell: object) -> str:
    """Text of a message without what a terminal would take for a command."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(cell))
