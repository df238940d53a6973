"""Secrets by reference: `env:NAME` and `file:/path`, read on the machine that needs them."""

import os
from pathlib import Path

from babelqueue_spark.errors import OptionError, hide


def is_reference(value: str) -> bool:
    """Tell whether `resolve` gives another text than the value itself."""
    kind, separator, _ = value.partition(":")
    return bool(separator) and kind in ("env", "file")


def resolve(value: str, name: str) -> str:
    """Return the value of option `name`, or what `env:NAME` or `file:/path` refers to on this machine.

    Raises:
        OptionError: the variable is not set, or the file cannot be read.
    """
    if not is_reference(value):
        return value
    found = _referred_to(value, name)
    hide(found, value)
    return found


def _referred_to(value: str, name: str) -> str:
    kind, _, target = value.partition(":")
    if kind == "env":
        if target not in os.environ:
            raise OptionError(
                f"option '{name}' refers to the environment variable {target}, which is not set on this "
                "machine: set it for the driver and for the executors (spark.executorEnv)"
            )
        return os.environ[target]
    try:
        return Path(target).read_text().strip()
    except OSError as error:
        raise OptionError(
            f"option '{name}' refers to the file {target}, which cannot be read ({error.strerror}): "
            "it must exist on the driver and on the executors"
        ) from None
