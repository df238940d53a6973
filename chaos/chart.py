"""The samples of `make soak` as a picture: memory, descriptors and files over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

ROLES = ("driver", "jvm", "planner", "daemon", "worker", "broker")


def draw(whole: dict[str, Any], file: Path) -> None:
    """Write an SVG: a row for each stream, with its memory, its descriptors and its files."""
    streams = whole["streams"]
    with mpl.rc_context({"svg.hashsalt": "soak", "font.size": 7}):
        figure, axes = plt.subplots(
            len(streams), 3, figsize=(9, 2.4 * len(streams)), layout="constrained", squeeze=False
        )
        for row, found in zip(axes, streams.values(), strict=True):
            _lines(row, found["samples"])
            row[0].set_title(f"{found['title']}: MiB")
            row[1].set_title("descriptors")
            row[2].set_title("files")
        for each in axes[-1]:
            each.set_xlabel("seconds")
        figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)


def _lines(row: Any, samples: list[dict[str, Any]]) -> None:
    seconds = [sample["second"] for sample in samples]
    for role in ROLES:
        numbers = [sample["processes"].get(role, [0, 0, 0]) for sample in samples]
        row[0].plot(seconds, [mib for _, _, mib in numbers], label=role, linewidth=0.8)
        row[1].plot(seconds, [descriptors for _, descriptors, _ in numbers], label=role, linewidth=0.8)
    for name in ("journal files", "checkpoint files"):
        row[2].plot(seconds, [sample[name] for sample in samples], label=name, linewidth=0.8)
    for each in row:
        each.set_ylim(bottom=0)
    row[0].legend(fontsize=5)
    row[2].legend(fontsize=5)
