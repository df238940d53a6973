"""Print what makes a shell complete jobs and their options.

    babelqueue-spark completion bash > ~/.local/share/bash-completion/completions/babelqueue-spark
    babelqueue-spark completion zsh > ~/.zfunc/_babelqueue-spark

For zsh, `~/.zfunc` stands for a folder in its `fpath`.
"""

from __future__ import annotations

import argparse
from importlib import import_module

import shtab

from babelqueue_spark import __version__
from babelqueue_spark.jobs.__main__ import JOBS
from babelqueue_spark.jobs.command import Arguments, job

_FILES = {"FILE": shtab.FILE, "PATH": shtab.FILE, "FOLDER": shtab.DIRECTORY}


@job
def main(arguments: list[str] | None = None) -> int:
    """Print the script; returns the exit code."""
    print(shtab.complete(all_jobs(), shell=command_line().parse_args(arguments).shell))
    return 0


def command_line() -> Arguments:
    """Make the parser of the command line."""
    parser = Arguments("completion", __doc__)
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return parser


def all_jobs() -> argparse.ArgumentParser:
    """Make a parser with a subcommand for each job."""
    parser = argparse.ArgumentParser(prog="babelqueue-spark")
    parser.add_argument("--version", action="version", version=__version__)
    jobs = parser.add_subparsers(dest="job")
    for name in JOBS:
        its = import_module(f"babelqueue_spark.jobs.{name.replace('-', '_')}").command_line()
        about = (its.description or "").partition("\n")[0]
        for action in jobs.add_parser(name, parents=[its], add_help=False, help=about)._actions:
            if action.metavar in _FILES:
                action.complete = _FILES[action.metavar]  # type: ignore[attr-defined]
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
