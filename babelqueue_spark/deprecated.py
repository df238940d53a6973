"""Former names of public things: they work for one more release, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module: old name → `module:name` of today; warns at each use."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        place, _, today = names[name].partition(":")
        warnings.warn(
            f"{module}.{name} is now {place}.{today}; the former name goes with the next release",
            DeprecationWarning,
            stacklevel=3,
        )
        return getattr(import_module(place), today)

    return get
