"""Packages of npm that are data: fetched once."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

from tests.servers.base import StartError
from tests.servers.fetched import fetched_once

CACHE = Path(__file__).parents[2] / ".cache" / "npm"
ASYNCAPI = "@asyncapi/specs@6.11.1"
"""The JSON Schemas that AsyncAPI publishes for its documents."""


def package(name: str) -> Path:
    """The folder of a package, `name@version`, without what it depends on; of several processes, one fetches."""
    return fetched_once(CACHE / name.strip("@").replace("/", "-"), partial(_fetch, name))


def _fetch(name: str, folder: Path) -> None:
    if not shutil.which("npm"):
        raise StartError(
            "npm is missing, which fetches a package for tests: run scripts/provision.sh servers"
        )
    begun = folder.with_suffix(".partial")
    begun.mkdir(exist_ok=True)
    command = ["npm", "pack", "--silent", "--pack-destination", str(begun), name]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode:
        raise StartError(f"npm could not fetch {name}: {fetched.stderr.strip().partition(chr(10))[0]}")
    for archive in begun.glob("*.tgz"):
        shutil.unpack_archive(archive, begun, format="gztar", filter="data")
    (begun / "package").rename(folder)
    shutil.rmtree(begun)
