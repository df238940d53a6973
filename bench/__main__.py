"""`make bench`: every row of every measurement, a table for each, kept as JSON and as a picture.

    python -m bench [MODULE ...] [--long] [--messages COUNT]

Measures the named modules, or all. Their rows replace those in `docs/bench.json`, the figures of record,
and in `build/bench/<commit>.json`; the chart beside each file is drawn again. `python -m
scripts.generate_docs` then puts the figures into the documentation.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module

from babelqueue_spark.bindings.registry import BINDINGS
from bench.chart import draw
from bench.record import keep, recorded
from bench.table import show

MODULES = [
    *(
        "codec",
        "catalog",
        "tables",
        "from_json",
        "variant",
        "redis",
        "memory",
        "worker",
        "metrics",
        "trigger",
    ),
    "schedule",
    *(broker for broker in BINDINGS if broker != "redis"),
]


def main(arguments: list[str]) -> int:
    """Measure the named modules, or all; returns how many rows are below their floor."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(MODULES))
    parser.add_argument("--long", action="store_true", help="memory: a backlog of three million too")
    parser.add_argument("--messages", type=int, help="worker: so many beside its peers; keeps no figures")
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.modules} - {*MODULES}):
        parser.error(f"no such module: {', '.join(unknown)}")
    if given.messages:
        return show(import_module("bench.peers.compare").rows(given.messages))
    below = sum(measure(name, long=given.long) for name in given.modules or MODULES)
    print(f"{below} rows are below their floor" if below else "no row is below its floor")
    return below


def measure(name: str, *, long: bool) -> int:
    """Measure a module, show its rows and keep them; returns how many are below their floor."""
    module = import_module(f"bench.{name}")
    started = time.monotonic()
    rows = module.rows(long=True) if long and name == "memory" else module.rows()
    for file in keep(name, rows, time.monotonic() - started):
        draw(recorded(file), file.with_suffix(".svg"))
    return show(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
