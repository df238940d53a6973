"""Rows of the tables that the documentation shows, from `docs/chaos.json`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any

SETUPS = (
    "what runs", "faults", "messages", "lost", "batches replayed", "of them changed", "read twice (after)",
    "handlers run again", "dead letters, replies published again",
)  # fmt: skip
FAULTS = ("fault", "times", "median", "longest")
FAILURES = ("condition", "times")


def setups(whole: dict[str, Any]) -> Iterator[list[str]]:
    """What each setup has shown."""
    for found in whole["setups"].values():
        twice = ", ".join(f"{count} ({fault})" for fault, count in found["twice"].items())
        yield [
            found["title"],
            str(len(found["faults"])),
            f"{found['confirmed']:,}",
            str(found["lost"]),
            f"{found['replayed']} of {found['batches']}",
            str(len(found["changed"])),
            twice or "0",
            str(found["handled_twice"]),
            f"{found['dead_twice']}, {found['replied_twice']}",
        ]


def faults(whole: dict[str, Any]) -> Iterator[list[str]]:
    """How often each fault was injected, and seconds until stream and worker moved again."""
    recovered: defaultdict[str, list[float]] = defaultdict(list)
    for found in whole["setups"].values():
        for fault in found["faults"]:
            recovered[fault["kind"]].append(fault["recovered"])
    for kind, seconds in sorted(recovered.items()):
        yield [kind, str(len(seconds)), f"{median(seconds):.1f}", f"{max(seconds):.1f}"]


def failures(whole: dict[str, Any]) -> Iterator[list[str]]:
    """How often queries ended with each condition."""
    count: Counter[str] = Counter()
    for found in whole["setups"].values():
        count.update(found["failures"])
    for condition, times in count.most_common():
        yield [condition if condition == "others" else f"`BABELQUEUE_{condition}`", str(times)]


SOAK_STREAMS = ("broker", "messages", "arrived", "batches", "p50, s", "p99, s", "longest, s")
SOAK_TRIALS = ("trial", "seconds", "largest Python process, MiB", "all there")


def soak_streams(whole: dict[str, Any]) -> Iterator[list[str]]:
    """Seconds from publishing to commit, of each broker."""
    for found in whole["streams"].values():
        counts = [f"{found[name]:,}" for name in ("published", "arrived", "batches")]
        yield [found["title"], *counts, *(f"{found[name]:.2f}" for name in ("p50", "p99", "longest"))]


def soak_trials(whole: dict[str, Any]) -> Iterator[list[str]]:
    """Large amounts."""
    for found in whole["trials"]:
        memory = str(found["mib"]) if found["mib"] else ""
        yield [found["trial"], f"{found['seconds']:.1f}", memory, "yes" if found["right"] else "NO"]
