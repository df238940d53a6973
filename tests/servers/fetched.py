"""Folders under `.cache` that are fetched once."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path


def fetched_once(folder: Path, fetch: Callable[[Path], None]) -> Path:
    """The folder, which `fetch` makes whole where it is missing; of several processes that want it, one does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            fetch(folder)
    return folder
