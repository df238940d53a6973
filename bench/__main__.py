"""`make bench`: every row of every measurement, as one table."""

from __future__ import annotations

import sys
from importlib import import_module

from bench.table import show

MODULES = ["codec", "from_json", "redis", "kafka"]


def main(names: list[str]) -> int:
    """Measure the named modules, or all; 1 when a ratio is below its floor."""
    rows = [row for name in names or MODULES for row in import_module(f"bench.{name}").rows()]
    return show(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
