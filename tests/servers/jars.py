"""Jars of servers written in Java: fetched once by Maven, as a pom names them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from zlib import crc32

from tests.servers.base import StartError

CACHE = Path(__file__).parents[2] / ".cache" / "jars"


def jars(pom: Path) -> Path:
    """The folder with the jars of a pom."""
    folder = CACHE / f"{pom.stem}-{crc32(pom.read_bytes()):08x}"
    if folder.is_dir():
        return folder
    if not shutil.which("mvn"):
        raise StartError("Maven is missing, which fetches a server's jars: run scripts/provision.sh")
    partial = folder.with_suffix(".partial")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    command = ["mvn", "-q", "-B", "-f", str(pom), *goal]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode:
        reason = fetched.stdout.partition("[ERROR] ")[2].partition("\n")[0]
        raise StartError(f"Maven could not fetch the jars of {pom.name}: {reason}")
    partial.rename(folder)
    return folder
