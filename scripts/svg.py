"""The parts of a picture: SVG for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STYLE = """
svg { --page: #ffffff; --edge: #d0d7de; --text: #1f2328; --faint: #59636e; --line: #59636e;
      --blue: #ddf4ff; --blue-edge: #0969da; --green: #dafbe1; --green-edge: #1a7f37;
      --amber: #fff8c5; --amber-edge: #9a6700; --red: #cf222e; --plain: #f6f8fa; }
@media (prefers-color-scheme: dark) {
svg { --page: #0d1117; --edge: #3d444d; --text: #f0f6fc; --faint: #9198a1; --line: #9198a1;
      --blue: #121d2f; --blue-edge: #4493f8; --green: #12261e; --green-edge: #3fb950;
      --amber: #272115; --amber-edge: #d29922; --red: #f85149; --plain: #151b23; } }
text { font: 15px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--text); }
.title { font-weight: 600; }
.faint { font-size: 13px; fill: var(--faint); }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.page { fill: var(--page); stroke: var(--edge); }
.plain { fill: var(--plain); stroke: var(--edge); }
.blue { fill: var(--blue); stroke: var(--blue-edge); }
.green { fill: var(--green); stroke: var(--green-edge); }
.amber { fill: var(--amber); stroke: var(--amber-edge); }
.arrow { fill: none; stroke: var(--line); stroke-width: 1.6; marker-end: url(#head); }
.dashed { stroke-dasharray: 5 4; }
.head { fill: var(--line); }
.kill { stroke: var(--red); stroke-width: 2.4; fill: none; }
.red { fill: var(--red); font-weight: 600; }
"""
HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker>'
)


def picture(name: str, width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Make a picture on a panel of its own, which is legible on any page."""
    panel = f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="{name}">',
            f'<title id="{name}">{escape(title)}</title>',
            f"<style>{STYLE}</style>",
            f"<defs>{HEAD}</defs>",
            panel,
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Write a line of text at its baseline."""
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>'


def box(x: int, y: int, width: int, height: int, kind: str, title: str, *lines: str) -> str:
    """Draw a box with a title and fainter lines, all centred."""
    middle = x + width / 2
    first = y + height / 2 + 5 - 9 * len(lines)
    words = [text(middle, first, title, "title middle")]
    words += [text(middle, first + 19 * number, line, "faint middle") for number, line in enumerate(lines, 1)]
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>' + "".join(words)


def arrow(path: str, kind: str = "") -> str:
    """Draw an arrow along a path."""
    return f'<path class="arrow {kind}" d="{path}"/>'


def kill(x: int, y: int) -> str:
    """Mark a crash by a cross."""
    return f'<path class="kill" d="M{x - 7} {y - 7} {x + 7} {y + 7} M{x + 7} {y - 7} {x - 7} {y + 7}"/>'
