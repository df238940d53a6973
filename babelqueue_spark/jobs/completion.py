"""Print what makes a shell complete jobs and their options.

    babelqueue-spark completion bash > ~/.local/share/bash-completion/completions/babelqueue-spark
    babelqueue-spark completion zsh > ~/.zfunc/_babelqueue-spark

For zsh, `~/.zfunc` stands for a folder in its `fpath`.
"""

import argparse
from importlib import import_module

import shtab

from babelqueue_spark import __version__
from babelqueue_spark.jobs.__main__ import JOBS
from babelqueue_spark.jobs.arguments import Arguments
from babelqueue_spark.jobs.command import job

_FILES = {"FILE": shtab.FILE, "PATH": shtab.FILE, "FOLDER": shtab.DIRECTORY}


def _add_options(parser: Arguments) -> None:
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Print the script."""
    print(shtab.complete(all_jobs(), shell=given.shell))


def all_jobs() -> argparse.ArgumentParser:
    """Make a parser with a subcommand for each job."""
    parser = argparse.ArgumentParser(prog="babelqueue-spark")
    parser.add_argument("--version", action="version", version=__version__)
    jobs = parser.add_subparsers(dest="job")
    for name in JOBS:
        options = import_module(f"babelqueue_spark.jobs.{name.replace('-', '_')}").main.command_line()
        about = (options.description or "").partition("\n")[0]
        for action in jobs.add_parser(name, parents=[options], add_help=False, help=about)._actions:
            if action.metavar in _FILES:
                action.complete = _FILES[action.metavar]  # type: ignore[attr-defined]
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
