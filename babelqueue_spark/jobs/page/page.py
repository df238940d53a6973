"""The page as one file, and the policy under which a browser runs it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "browser"
_SCRIPTS = ("dom.js", "queues.js", "queries.js", "messages.js", "main.js")


@dataclass(frozen=True)
class Page:
    """What a browser gets.

    Attributes:
        content: HTML with its style and script.
        headers: beside it; no script and no style but these two runs, and nothing is loaded from elsewhere.
    """

    content: bytes
    headers: dict[str, str]


def load_page() -> Page:
    """Put the page together."""
    style = _text("page.css")
    script = "\n".join(map(_text, _SCRIPTS))
    content = _text("page.html").replace("/* style */", style).replace("/* script */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(
        content.encode(), {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
    )


def _text(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
