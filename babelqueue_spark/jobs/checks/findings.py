"""What a check finds."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from babelqueue_spark.errors import BabelQueueError, without_hidden

Status = Literal["ok", "warning", "failed"]

_SAID = (
    r"babelqueue_spark\.errors\.\w+: (.+)",
    r"(\[PYTHON_VERSION_MISMATCH\][^\n]+)",
    r"(Cannot run program [^\n]+)",
    r"(ModuleNotFoundError: [^\n]+)",
)
"""The lines that say most, in what Spark wraps around them."""


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        check: what was checked, such as `Java` or `queue orders`.
        status: `failed` says that the connector will not work so.
        text: what is so, and unless it is `ok` what to do; one line without a secret.
        where: host and port of an executor; empty for this machine.
    """

    check: str
    status: Status
    text: str
    where: str = ""


def ok(check: str, text: str) -> Finding:
    """Return all is well."""
    return Finding(check, "ok", text)


def warning(check: str, text: str) -> Finding:
    """Note what works, but not as it should."""
    return Finding(check, "warning", text)


def failed(check: str, text: str) -> Finding:
    """Note what does not work."""
    return Finding(check, "failed", text)


def explained(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings of a check, and what it raises as its last one."""
    try:
        yield from findings
    except Exception as error:  # noqa: BLE001 (a broken installation may raise anything)
        yield failed(check, reason_of(error))


def reason_of(error: Exception) -> str:
    """Return an error in one line; of a foreign error its class alone, as its text may hold a secret."""
    if isinstance(error, BabelQueueError):
        return str(error)
    name = type(error).__name__
    if isinstance(error, ImportError):
        return f"{name}: {_one_line(str(error))}"
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {error.strerror}"
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return _of_spark(str(error)) or name
    return f"ended with {name}: report it, with what you ran"


def _of_spark(text: str) -> str:
    said = (found[-1] for found in (re.findall(pattern, text) for pattern in _SAID) if found)
    return _one_line(next(said, next(iter(text.splitlines()), "")))


def _one_line(text: str) -> str:
    return without_hidden(" ".join(text.split()))
