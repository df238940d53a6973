"""Files of one JSON value a line, which outlive the SIGKILL of who writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def note(path: Path, content: Any) -> None:
    """Append a line in one write, behind a line break: one that a kill has cut short spoils no other."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"\n{json.dumps(content)}\n".encode())
    finally:
        os.close(descriptor)


def notes(path: Path) -> Iterator[Any]:
    """The values of the lines that are whole; none where there is no file."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
