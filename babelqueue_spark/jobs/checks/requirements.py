"""What the installed distribution requires, and whether it is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

_DISTRIBUTION = "babelqueue-spark"
_LINE = re.compile(r"""([\w.-]+)(?:\[[^]]*\])?([^;]*)(?:;.*?extra\s*==\s*['"]([\w-]+)['"].*)?""")
"""Name, bounds, and the extra that a line belongs to."""


def extras() -> dict[str, dict[str, str]]:
    """Extra → package → its bounds, such as `>=2.2,<3`; the empty extra is what is always required.

    Nothing where the package is without its metadata, as a folder on the path is.
    """
    try:
        lines = requires(_DISTRIBUTION) or ()
    except PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str]] = {"": {}}
    for line in lines:
        if match := _LINE.fullmatch(line):
            name, bounds, extra = match.groups()
            found.setdefault(extra or "", {})[name] = bounds.strip()
    return found


def problems(packages: dict[str, str]) -> Iterator[str]:
    """Yield what is missing, too old or too new of packages → bounds."""
    for name, bounds in packages.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield f"{name} is missing"
            continue
        if not all(_meets(installed, bound.strip()) for bound in bounds.split(",") if bound.strip()):
            yield f"{name} is {installed}, not {bounds}"


def _meets(installed: str, bound: str) -> bool:
    """Return whether a version meets a bound of one of the kinds that this project has."""
    numbers, limit = _numbers(installed), _numbers(bound)
    if bound.startswith(">="):
        return numbers >= limit
    if bound.startswith("<"):
        return numbers < limit
    return numbers[: len(limit)] == limit


def _numbers(text: str) -> list[int]:
    """`>=2.0.30` → 2, 0, 30; without what marks a pre-release."""
    release = re.search(r"\d+(\.\d+)*", text)
    return [int(number) for number in release[0].split(".")] if release else []
