"""The wheel in a fresh environment, and the other door to Spark: Connect."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.streams import envelope, publish

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.spark, pytest.mark.server]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
url, folder, remote = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false")
spark = (builder.remote("local[2]") if remote == "connect" else builder.master("local[2]")).getOrCreate()
reader = spark.readStream.format("babelqueue").options(url=url, queue="orders", journalLocation=folder + "/journal")
query = (reader.load().where("error IS NULL").selectExpr("job", "data", "trace_id").writeStream.format("babelqueue")
    .options(url=url, queue="copies", checkpointLocation=folder + "/checkpoint").trigger(availableNow=True).start())
query.awaitTermination(90)
assert query.exception() is None, query.exception()
copies = spark.read.format("babelqueue").options(url=url, queue="copies").load()
print("copies:", copies.where("error IS NULL").count())
spark.stop()
"""


def run(python: Path, url: str, folder: Path, remote: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_REMOTE")}
    done = subprocess.run(
        [str(python), "-c", PROGRAM, url, str(folder), remote],
        env={**clean, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def queue_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", [*(envelope(n) for n in range(20)), b"bad"])
    return url


@pytest.mark.parametrize("remote", ["classic", "connect"])
def test_read_and_write(queue_url: str, tmp_path: Path, remote: str) -> None:
    assert "copies: 20" in run(Path(sys.executable), queue_url, tmp_path, remote, PYTHONPATH=str(ROOT))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_in_a_fresh_environment(queue_url: str, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh/bin/python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", f"{wheel}[sql]"], check=True, capture_output=True
    )
    assert "copies: 20" in run(python, queue_url, tmp_path, "classic")
