"""Jars and distributions of servers written in Java: fetched once by Maven, as a pom names them."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from zlib import crc32

from tests.servers.base import StartError
from tests.servers.fetched import fetched_once

CACHE = Path(__file__).parents[2] / ".cache" / "jars"
LAKEHOUSE = Path(__file__).parent / "poms" / "lakehouse.xml"
"""The jars of Delta Lake and Apache Iceberg, for a PySpark of 4.1."""


def jars(pom: Path) -> Path:
    """The folder with the jars of a pom; of several processes that want it, one fetches."""
    folder = CACHE / f"{pom.stem}-{crc32(pom.read_bytes()):08x}"
    return fetched_once(folder, partial(_fetch, pom))


def distribution(pom: Path) -> Path:
    """The folder that the archive of a pom was unpacked to."""
    return next(found.parent for found in jars(pom).glob("*/bin"))


def _fetch(pom: Path, folder: Path) -> None:
    if not shutil.which("mvn"):
        raise StartError("Maven is missing, which fetches a server's jars: run scripts/provision.sh")
    begun = folder.with_suffix(".partial")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={begun}"]
    command = ["mvn", "-q", "-B", "-f", str(pom), *goal]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode:
        reason = fetched.stdout.partition("[ERROR] ")[2].partition("\n")[0]
        raise StartError(f"Maven could not fetch the jars of {pom.name}: {reason}")
    for archive in begun.glob("*.tar.gz"):
        shutil.unpack_archive(archive, begun, filter="data")
        archive.unlink()
    begun.rename(folder)
