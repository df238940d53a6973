"""`make bench`: every row of every measurement, a table for each."""

from __future__ import annotations

import sys
from importlib import import_module

from babelqueue_spark.bindings.registry import BINDINGS
from bench.table import show

MODULES = ["codec", "from_json", "redis", "worker", *(broker for broker in BINDINGS if broker != "redis")]


def main(names: list[str]) -> int:
    """Measure the named modules, or all; 1 when a ratio is below its floor."""
    return max(show(import_module(f"bench.{name}").rows()) for name in names or MODULES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
