"""Packages of npm that are data: fetched once."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.servers.base import StartError

CACHE = Path(__file__).parents[2] / ".cache" / "npm"
ASYNCAPI = "@asyncapi/specs@6.11.1"
"""The JSON Schemas that AsyncAPI publishes for its documents."""


def package(name: str) -> Path:
    """The folder of a package, `name@version`, without what it depends on; of several processes, one fetches."""
    folder = CACHE / name.strip("@").replace("/", "-")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(name, folder)
    return folder


def _fetch(name: str, folder: Path) -> None:
    if not shutil.which("npm"):
        raise StartError(
            "npm is missing, which fetches a package for tests: run scripts/provision.sh servers"
        )
    partial = folder.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    command = ["npm", "pack", "--silent", "--pack-destination", str(partial), name]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode:
        raise StartError(f"npm could not fetch {name}: {fetched.stderr.strip().partition(chr(10))[0]}")
    for archive in partial.glob("*.tgz"):
        shutil.unpack_archive(archive, partial, format="gztar", filter="data")
    (partial / "package").rename(folder)
    shutil.rmtree(partial)
