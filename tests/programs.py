"""Programs for tests that need another Spark than theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Spark Connect of a local session has port 15002 but with this variable, which Spark's own tests use.
CONNECT_ON_A_FREE_PORT = {"SPARK_TESTING": "1"}
INTERRUPTIBLE = ("env", "--default-signal=INT")
"""Before a command that gets SIGINT: a shell without job control has its background processes ignore it."""
_OURS = ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON", "SPARK_REMOTE")


def run(program: str, *arguments: str, **environment: str) -> str:
    """What a program writes, in a process of its own that is free to make any Spark session."""
    return run_command([sys.executable, "-c", program, *arguments], None, PYTHONPATH=str(ROOT), **environment)


def run_command(command: Sequence[str], folder: Path | None, **environment: str) -> str:
    """What a command writes, in a folder, with no package, session or Python of this process but those it is given."""
    clean = {name: value for name, value in os.environ.items() if name not in _OURS}
    done = subprocess.run(
        command,
        env={**clean, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


_REFUSING = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {refused!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def without(
    refused: Collection[str], program: str, folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, as a file, in a Python to which some packages are not installed."""
    file = folder / "program.py"
    file.write_text(_REFUSING.format(refused=set(refused)) + program)
    return subprocess.run(
        [sys.executable, str(file), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
