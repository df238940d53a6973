"""Programs for tests that need another Spark than theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Spark Connect of a local session has port 15002 but with this variable, which Spark's own tests use.
CONNECT_ON_A_FREE_PORT = {"SPARK_TESTING": "1"}


def run(program: str, *arguments: str, **environment: str) -> str:
    """What a program writes, in a process of its own that is free to make any Spark session."""
    clean = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
