"""What all jobs share: the style of their options, their exit codes, their session, what they print."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException, PySparkImportError
from pyspark.sql import SparkSession
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.options import Options

EXIT_CODES = """
Options may stand in a file that is named as @FILE: a line an option, # before a comment. Passwords are
given by reference only: env:NAME or file:/path.

Exit codes: 0 done, 1 something failed (one line on standard error says what), 2 wrong usage, 130 interrupted.
"""
_SECRET = re.compile(r"sharedaccess(key|signature)=|[?&;][^=&;]*(password|passwd|secret|token)[^=&;]*=", re.I)
_USER_AND_PASSWORD = re.compile(r"://[^@/?#]*:[^@]+@")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_SECRET_NAME = re.compile(r"password|secret|token", re.I)

Job = Callable[[list[str] | None], int]


class JobError(Exception):
    """Something that ends a job, in one line."""


class Arguments(argparse.ArgumentParser):
    """The options of a job: its docstring is its help, `@FILE` names a file of options."""

    def __init__(self, job: str, description: str | None) -> None:
        super().__init__(
            prog=f"babelqueue-spark {job}",
            description=description,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            fromfile_prefix_chars="@",
            allow_abbrev=False,
        )
        self.add_argument("--verbose", action="store_true", help="show what Spark logs, not only its errors")

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse, and keep a Spark that is not there yet quiet unless `--verbose` is given."""
        given = super().parse_args(args)
        if not given.verbose:
            os.environ.setdefault("LOG4J_CONFIGURATION_FILE", str(_LOG_SETTINGS))
        return given

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        return shlex.split(arg_line, comments=True)

    def add_broker(self, prefix: str = "", *, queue: str, required: bool = True) -> None:
        """`--url`, `--queue` and `--option`, or `--from-url` and so on."""
        self.add_argument(
            f"--{prefix}url", required=True, type=reference, help="the broker, or env:NAME, or file:/path"
        )
        self.add_argument(f"--{prefix}queue", required=required, help=queue)
        self.add_argument(
            f"--{prefix}option",
            action="append",
            default=[],
            type=option,
            metavar="NAME=VALUE",
            help="a further option of the connector, such as redis.laravel=true; may be repeated",
        )


def reference(text: str) -> str:
    """A URL without a secret in it, or a reference to one that has it."""
    if not text.startswith(("env:", "file:")) and (_password(text) or _SECRET.search(text)):
        raise argparse.ArgumentTypeError(
            "holds a secret, and command lines are read by others: put the URL into a variable or a file, "
            "and give env:NAME or file:/path"
        )
    return text


def _password(text: str) -> bool:
    """Whether a URL, or one within its query, has a password, also one that should have been escaped."""
    return bool(_USER_AND_PASSWORD.search(unquote(text)))


def option(text: str) -> tuple[str, str]:
    """`NAME=VALUE`, where a secret is a reference."""
    name, value = pair(text)
    if _SECRET_NAME.search(name) and not value.startswith(("env:", "file:")):
        raise argparse.ArgumentTypeError(f"{name} is a secret: give {name}=env:NAME or {name}=file:/path")
    return name, reference(value)


def place(text: str) -> str:
    """A path or URL of files without a secret in it."""
    if _password(text) or _SECRET.search(text):
        raise argparse.ArgumentTypeError(
            "holds a secret, and command lines are read by others: give it to the file system in its own way"
        )
    return text


def pair(text: str) -> tuple[str, str]:
    """`NAME=VALUE` split at the first `=`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name.strip(), value.strip()


def count(text: str) -> int:
    """A number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
    return int(text)


def of_both(options: Mapping[str, str]) -> dict[str, str]:
    """Those options that reads and writes share: the broker's."""
    return {name: value for name, value in options.items() if name == "broker" or "." in name}


def job(run: Job) -> Job:
    """A job's `main`: what goes wrong is one line on standard error, and an exit code."""
    name = run.__module__.rpartition(".")[2].replace("_", "-")

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
    """The connector's own line out of what Spark wraps around it."""
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
    """The session that is there, or one for a job that shuffles counts only."""
    return SparkSession.getActiveSession() or (
        SparkSession.builder.appName(name)
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


class Numbers(RegexHighlighter):
    """Numbers in one colour, thousands separators included."""

    base_style = "repr."
    highlights = (r"(?P<number>\b\d[\d,.]*\b)",)


def new_console(**settings: Any) -> Console:
    """Make a console for what jobs print."""
    return Console(highlighter=Numbers(), **settings)


def bar(console: Console, total: int | None) -> Progress:
    """A progress bar; silent where the output is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal or total == 0,
    )


def spinner(console: Console, text: str) -> AbstractContextManager[object]:
    """What is shown while work of unknown length is done; silent where the output is no terminal."""
    return console.status(text) if console.is_terminal else nullcontext()


def show(console: Console, headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table; numbers to the right, with separators."""
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
