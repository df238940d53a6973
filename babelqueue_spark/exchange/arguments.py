"""Checks of arguments that a schedule and an outbox share."""

from __future__ import annotations

from babelqueue_spark.errors import OptionError

MOST_SECONDS = 1_000_000_000
"""Thirty years: in microseconds, times behind them do not fit into a database."""


def check_seconds(name: str, value: object, least: float) -> None:
    """Raise `OptionError` unless an argument is a number of seconds that a database can hold."""
    if not isinstance(value, int | float) or not least <= value <= MOST_SECONDS:
        raise OptionError(f"{name} takes a number of seconds from {least} to {MOST_SECONDS:,}, not {value!r}")
