"""What a job is: its command line, with secrets by reference only, and its exit codes. Needs no package."""

import argparse
import inspect
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from babelqueue_spark.errors import BabelQueueError

EXIT_CODES = """
Options may stand in a file that is named as @FILE: a line an option, # before a comment. Passwords are
given by reference only: env:NAME or file:/path.

Exit codes: 0 done, 1 something failed (one line on standard error says what), 2 wrong usage, 130 interrupted.
"""
_SECRET = re.compile(r"sharedaccess(key|signature)=|[?&;][^=&;]*(password|passwd|secret|token)[^=&;]*=", re.I)
_USER_AND_PASSWORD = re.compile(r"://[^@/?#]*:[^@]+@")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_SECRET_NAME = re.compile(r"password|secret|token", re.I)


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
        self._refusals: list[tuple[str, Callable[[argparse.Namespace], object]]] = []
        self.add_argument("--verbose", action="store_true", help="show what Spark logs, not only its errors")

    def refuse(self, text: str, is_wrong: Callable[[argparse.Namespace], object]) -> None:
        """Exit with 2 and a text for options that are wrong together; `{name}` in it is an option's value."""
        self._refusals.append((text, is_wrong))

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse, and keep a Spark that is not there yet quiet unless `--verbose` is given."""
        given = super().parse_args(args)
        for text, is_wrong in self._refusals:
            if is_wrong(given):
                self.error(text.format_map(vars(given)))
        if given.verbose:
            logging.basicConfig(format="%(message)s")
            logging.getLogger("babelqueue_spark.batches").setLevel(logging.INFO)
        else:
            os.environ.setdefault("LOG4J_CONFIGURATION_FILE", str(_LOG_SETTINGS))
        return given

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        return shlex.split(arg_line, comments=True)

    def add_metrics(self) -> None:
        """Add `--metrics`, of jobs that run a query; see `observed`."""
        self.add_argument(
            "--metrics",
            metavar="WHERE",
            type=reference,
            help="tell Prometheus, while the job runs: a port (9464, or 0.0.0.0:9464), the URL of a push "
            "gateway, a file that ends with .prom, or env:NAME, or file:/path",
        )

    def add_broker(
        self, prefix: str = "", *, queue: str, required: bool = True, url_required: bool = True
    ) -> None:
        """Add `--url`, `--queue` and `--option`, or `--from-url` and so on."""
        broker = "the broker, or env:NAME, or file:/path"
        self.add_argument(f"--{prefix}url", required=url_required, type=reference, help=broker)
        self.add_argument(f"--{prefix}queue", required=required, help=queue)
        further = "a further option of the connector, such as redis.laravel=true"
        self.add_several(f"{prefix}option", "NAME=VALUE", further, type=option)

    def add_several(
        self, name: str, metavar: str | None, about: str, type: Callable[[str], Any] = str
    ) -> None:
        """Add an option that may be repeated."""
        about = f"{about}; may be repeated"
        self.add_argument(f"--{name}", action="append", default=[], type=type, metavar=metavar, help=about)

    def add_database(self, name: str, table: str) -> None:
        """Add the option that names a database, and `--table`."""
        database = "its database, or env:NAME, or file:/path"
        self.add_argument(f"--{name}", required=True, type=reference, help=database)
        self.add_argument("--table", default=table, help=f"the {name}'s table (default: {table})")

    def add_every(self) -> None:
        """Add `--every`, of jobs that poll."""
        from babelqueue_spark.bindings.options import seconds

        self.add_argument(
            "--every", type=seconds, default=2.0, metavar="TIME", help="between two polls (default: 2s)"
        )


Run = Callable[[argparse.Namespace], int | None]
AddOptions = Callable[[Arguments], None]


class Job:
    """A job: it takes a command line and runs; what goes wrong is one line on standard error, and a code.

    Args:
        run: takes the parsed command line; what it returns is the exit code, None = 0.
        add_options: adds its options.
    """

    failures: tuple[type[Exception], ...] = (BabelQueueError, JobError, OSError)

    def __init__(self, run: Run, add_options: AddOptions) -> None:
        self._run, self._add_options = run, add_options
        self._name = Path(inspect.getfile(run)).stem.replace("_", "-")
        self._about = sys.modules[run.__module__].__doc__

    def command_line(self) -> Arguments:
        parser = Arguments(self._name, self._about)
        self._add_options(parser)
        return parser

    def __call__(self, arguments: list[str] | None = None) -> int:
        try:
            return self._run(self.command_line().parse_args(arguments)) or 0
        except self.failures as error:
            print(f"{self._name}: {self.reason(error)}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"{self._name}: interrupted", file=sys.stderr)
            return 130

    def reason(self, error: Exception) -> str:
        return str(error)


def reference(text: str) -> str:
    """Return a URL without a secret in it, or a reference to one that has it."""
    if not text.startswith(("env:", "file:")) and (_password(text) or _SECRET.search(text)):
        raise argparse.ArgumentTypeError(
            "holds a secret, and command lines are read by others: put the URL into a variable or a file, "
            "and give env:NAME or file:/path"
        )
    return text


def _password(text: str) -> bool:
    """Return whether a URL, or one within its query, has a password, also one that is not escaped."""
    return bool(_USER_AND_PASSWORD.search(unquote(text)))


def option(text: str) -> tuple[str, str]:
    """`NAME=VALUE`, where a secret is a reference."""
    name, value = pair(text)
    if _SECRET_NAME.search(name) and not value.startswith(("env:", "file:")):
        raise argparse.ArgumentTypeError(f"{name} is a secret: give {name}=env:NAME or {name}=file:/path")
    return name, reference(value)


def place(text: str) -> str:
    """Return a path or URL of files without a secret in it."""
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
    """Return a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
    return int(text)
