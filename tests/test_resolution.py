"""The extras install with the oldest pip that we name, without a search through old releases."""

from __future__ import annotations

import re
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLDEST_PIP = "23.2"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the oldest pip, and uv."""
    folder = tmp_path_factory.mktemp("oldest-pip")
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", f"pip=={OLDEST_PIP}", "uv")
    return python


def run(program: Path, *arguments: str) -> str:
    """What a program writes, in a folder without settings of ours."""
    done = subprocess.run(
        [str(program), *arguments], cwd=program.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def resolved(python: Path, *wanted: str) -> tuple[set[str], set[str]]:
    """The packages that pip would install, and those of which it tried several releases."""
    said = run(python, "-m", "pip", "install", "--dry-run", "--ignore-installed", *wanted)
    line = re.findall(r"^Would install (.*)", said, re.M)[0]
    return {each.rpartition("-")[0] for each in line.split()}, set(re.findall(r"versions of (\S+)", said))


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md"])
def test_the_oldest_pip_is_named(page: str) -> None:
    assert f"pip {OLDEST_PIP}" in (ROOT / page).read_text()


@pytest.mark.parametrize(
    "page", ["README.md", "docs/databricks.md", "docs/lakehouse.md", "docs/troubleshooting.md"]
)
def test_a_page_says_which_pyspark_goes_with_which_table_format(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    delta = re.search(r"Delta Lake (4\.4\.0)\b.*?PySpark 4\.1 or 4\.2", text)
    iceberg = re.search(r"Iceberg (1\.12)\W+(?:on|needs|with) 4\.1\b", text)
    assert delta
    assert iceberg
    jars = (ROOT / "tests/servers/poms/lakehouse.xml").read_text()
    assert all(f"<version>{found[1]}" in jars for found in (delta, iceberg))


def test_all_beside_the_sdk(python: Path) -> None:
    packages, searched = resolved(python, f"{ROOT}[all]", "babelqueue")
    assert {"babelqueue", "boto3", "pika", "redis", "rich"} <= packages
    assert not packages & {"pyspark", "pandas", "grpcio"}
    assert not searched


@pytest.mark.nightly
def test_all_with_spark_beside_delta(python: Path) -> None:
    """Delta Lake bounds PySpark: pip steps back from the newest one, and searches nothing else."""
    packages, searched = resolved(python, f"{ROOT}[all,spark]", "delta-spark")
    assert {"delta_spark", "pyspark", "pandas"} <= packages
    assert searched <= {"pyspark"}


def test_all_with_uv(python: Path) -> None:
    project = str(ROOT / "pyproject.toml")
    arguments = ["--quiet", "--python", str(python), "--extra", "all", "--extra", "connect", project]
    assert "boto3==" in run(python.with_name("uv"), "pip", "compile", *arguments)
