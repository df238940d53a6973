"""What a program gives: data and meta of one message, as columns of a write have them, and times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from babelqueue_spark.envelope.strict import is_extra
from babelqueue_spark.errors import OptionError

_MOST_SECONDS = 1_000_000_000
"""Thirty years: in microseconds, times behind them do not fit into a database."""


def check_seconds(name: str, value: object, least: float) -> None:
    """Raise `OptionError` unless an argument is a number of seconds that a database can hold."""
    if not isinstance(value, int | float) or not least <= value <= _MOST_SECONDS:
        raise OptionError(
            f"{name} takes a number of seconds from {least} to {_MOST_SECONDS:,}, not {value!r}"
        )


def json_of(data: Any, what: str) -> str:
    """Return data as compact JSON; text is JSON already.

    Raises:
        OptionError: JSON cannot carry it; names `what`.
    """
    return data if isinstance(data, str) else _compact(data, f"the data of {what}")


def extra_of(meta: Mapping[str, Any] | None, what: str) -> list[tuple[str, str]]:
    """Keys of `meta` with their values as JSON, as in the column `meta.extra`.

    Raises:
        OptionError: a key is one of the envelope's own, or JSON cannot carry its value; names `what`.
    """
    given = meta or {}
    own = ", ".join(key for key in given if not is_extra(key))
    if own:
        raise OptionError(f"the meta of {what} has {own}, which the envelope sets: remove it")
    return [(key, _compact(value, f"meta.{key} of {what}")) for key, value in given.items()]


def _compact(value: Any, what: str) -> str:
    try:
        text = json.dumps(
            value,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=msgspec.to_builtins,
        )
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"{what} cannot be JSON ({error}): use JSON's types") from None
    return text
