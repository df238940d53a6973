"""The figures of record as a picture: how far each work is from its peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

OURS, BELOW, MARK = "#3a6ea5", "#b5452c", "#222222"


def draw(modules: dict[str, Any], file: Path) -> None:
    """Write an SVG: a bar for each ratio, its spread as a whisker, its floor as a mark."""
    rows = [each for module in modules.values() for each in module["rows"]]
    settings = {"svg.hashsalt": "bench", "font.size": 8}
    with mpl.rc_context(settings):
        figure, axes = plt.subplots(figsize=(9, 1 + 0.22 * len(rows)), layout="constrained")
        for place, each in enumerate(rows):
            floor = each["floor"]
            axes.barh(place, each["ratio"], color=OURS if floor is None or each["ratio"] >= floor else BELOW)
            axes.plot(bounds(each), [place, place], color=MARK, linewidth=0.8)
            if floor is not None:
                axes.plot([floor, floor], [place - 0.4, place + 0.4], color=MARK, linewidth=1.6)
        axes.set_yticks(range(len(rows)), [f"{each['work']} / {each['peer']}" for each in rows], fontsize=6)
        axes.set_xscale("log")
        axes.axvline(1, color=MARK, linewidth=0.5)
        axes.invert_yaxis()
        axes.margins(y=0.01)
        axes.set_xlabel("ratio to the peer (log scale); line: spread; thick mark: floor")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)


def bounds(row: dict[str, Any]) -> tuple[float, float]:
    """The ratio at its worst and at its best."""
    (least, most), (their_least, their_most) = row["ours_spread"], row["theirs_spread"]
    return least / their_most, most / their_least
