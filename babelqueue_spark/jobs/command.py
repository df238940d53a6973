"""What jobs share that read, write or run Spark: their options, their session, what they print."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import sleep
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException, PySparkImportError
from pyspark.sql import SparkSession
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from babelqueue_spark.bindings import BaseBinding, Binding, binding_class
from babelqueue_spark.connector.options import Options, read_options, write_options
from babelqueue_spark.errors import (
    BrokerFullError,
    BrokerUnreachableError,
    OptionError,
    QueuesFailedError,
    line_of,
)
from babelqueue_spark.jobs.arguments import AddOptions, Job, Run
from babelqueue_spark.metrics import log_batches

if TYPE_CHECKING:
    from babelqueue_spark.exchange import Relayed, Released


class SparkJob(Job):
    """A job that may call Spark."""

    failures = (*Job.failures, PySparkException)

    def reason(self, error: Exception) -> str:
        """Return the connector's own line out of what Spark wraps around it."""
        if isinstance(error, PySparkImportError):
            return f'{error} Spark Connect needs: pip install "babelqueue-spark[connect]"'
        return line_of(error)


def job(add_options: AddOptions) -> Callable[[Run], Job]:
    """Make a job's `main` of what runs it, and of what adds its options."""
    return lambda run: SparkJob(run, add_options)


def given_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the connector's options of a command line, with its queue where that is given."""
    queue = {} if given.queue is None else {"queue": given.queue}
    return {"url": given.url, **queue, **dict(given.option)}


def waiting(options: Options) -> int:
    """Messages in all the queues of a read."""
    with options.binding() as binding:
        return sum(binding.backlog(queue) for queue in options.queue)


def browsable(given: argparse.Namespace) -> Options:
    """Return the options of a browse.

    Raises:
        OptionError: one is wrong, or the broker cannot be browsed.
    """
    options = read_options(given_options(given))
    if binding_class(options.broker).capabilities.browse == "none":
        raise OptionError(f"broker '{options.broker}' shows messages to nobody who does not consume them")
    return options


def browse(binding: BaseBinding, queue: str, most: int) -> Iterator[pa.RecordBatch]:
    """Browse at most so many messages; what that holds is released at the end."""
    batches = binding.browse(queue)
    try:
        for batch in batches:
            part = batch.slice(0, most)
            yield part
            most -= part.num_rows
            if not most:
                return
    finally:
        if isinstance(batches, Generator):
            batches.close()


def repeat(name: str, what: str, every: float | None, run: Callable[[], Relayed | Released]) -> int:
    """Run a pass, or one after the other with pauses, which pass over a broker or a database that is away."""
    console = new_console(soft_wrap=True)
    while True:
        try:
            passed = run()
        except (BrokerUnreachableError, BrokerFullError, QueuesFailedError) as error:
            if every is None:
                raise
            print(f"{name}: {error}", file=sys.stderr)
        else:
            if every is None or passed.messages or passed.failed:
                console.print(f"{what} {passed.messages:,} messages, {passed.failed:,} failed")
        if every is None:
            return 1 if passed.failed else 0
        sleep(every)


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
