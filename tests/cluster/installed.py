"""The project as users install it on a cluster: from its wheel."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def wheel(folder: Path) -> Path:
    """Build the wheel."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def environment(folder: Path, built: Path) -> Path:
    """The Python of an environment with the wheel; what the wheel needs, it has from this one."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(built)],
        check=True,
        capture_output=True,
    )
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return python
