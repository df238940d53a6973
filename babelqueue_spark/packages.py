"""Packages that the connector does not bring by itself: those of extras, and PySpark, which is the user's."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from babelqueue_spark.errors import MissingPackageError

MINIMUM = {"pyspark": "4.1", "pyarrow": "18", "pandas": "2.2"}
"""Package → its oldest version that works, as in pyproject.toml."""

_SPARK = 'pip install "babelqueue-spark[spark]", or take a cluster or runtime that has it'
_HINTS = {
    "spark": _SPARK,
    "jobs": 'pip install "babelqueue-spark[jobs]"',
    "metrics": 'pip install "babelqueue-spark[metrics]"',
}


@contextmanager
def brought_by(extra: str, what: str, *packages: str) -> Iterator[None]:
    """Name the extra that `what` needs where the import of one of `packages` fails.

    Raises:
        MissingPackageError: one of them is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        hint = _HINTS.get(extra, f'pip install "babelqueue-spark[{extra}]" on driver and executors')
        raise MissingPackageError(f"{what} needs the Python package '{package}': {hint}") from None


def require(what: str, *packages: str) -> None:
    """Check that packages of `MINIMUM` are there, and new enough for `what`.

    Raises:
        MissingPackageError: one of them is missing or too old.
    """
    for package in packages:
        with brought_by("spark", what, package):
            found: str = import_module(package).__version__
        if _numbers(found) < _numbers(MINIMUM[package]):
            raise MissingPackageError(
                f"{what} needs {package} {MINIMUM[package]} or newer, but this Python has {found}: {_SPARK}"
            )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
