"""What `make setup` and `make demo` install with: it says what it does, also without a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent.parent / "scripts/install.sh"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("installed") / "venv"


def install(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), sys.executable, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_it_makes_an_environment_and_says_how_long_it_took(folder: Path) -> None:
    done = install(folder, "--no-index", "pip")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(f"MB in {folder}")
    assert (folder / "bin/python").exists()


def test_while_pip_works_it_says_so(folder: Path, tmp_path: Path) -> None:
    """Until its backend has seen the line of progress, this package does not say what it is."""
    seen = tmp_path / "seen"
    (tmp_path / "backend.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.1)"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    command = [str(SCRIPT), sys.executable, str(folder), "--no-index", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seen.touch()
        assert process.wait(60) == 1
    assert " s, " in line
    assert " MB: " in line


def test_what_pip_cannot_install_is_shown(folder: Path) -> None:
    done = install(folder, "--no-index", "no-such-package")
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package" in done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"all that it said is in {folder}/install.log")
