"""A binding from outside: a package of its own, which knows nothing of these tests, passes the shipped suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tests" / "packages" / "folder_queue"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_package_passes_the_shipped_suite() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", PACKAGE / "pyproject.toml"],
        cwd=PACKAGE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(PACKAGE)])},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    [passed] = re.findall(r"^(\d+) passed in", done.stdout, re.M)
    assert int(passed) > 40
