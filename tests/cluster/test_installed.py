"""Ways to bring the package to the executors of a cluster."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.programs import run_command
from tests.servers.cluster import SPARK_HOME, SparkCluster
from tests.streams import envelope, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from babelqueue_spark.datasource import BabelQueueDataSource
url, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(BabelQueueDataSource)
read = []
query = (
    spark.readStream.format("babelqueue").options(url=url, queue="orders", journalLocation=folder + "/journal").load()
    .writeStream.foreachBatch(lambda batch, number: read.extend(batch.collect()))
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
print("read:", len(read))
spark.stop()
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python with what the package needs, and without the package."""
    venv.create(tmp_path / "bare", with_pip=False)
    [packages] = tmp_path.glob("bare/lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return tmp_path / "bare/bin/python"


def submit(cluster: SparkCluster, folder: Path, *arguments: str, **environment: str) -> str:
    url = f"sqlite:///{folder}/queue.db"
    publish(url, "orders", [envelope(number) for number in range(3000)])
    program = folder / "program.py"
    program.write_text(PROGRAM)
    settings = [
        "--master",
        cluster.url,
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.ui.enabled=false",
    ]
    command = [str(SPARK_HOME / "bin/spark-submit"), *settings, *arguments, str(program), url, str(folder)]
    return run_command(command, folder, SPARK_HOME=str(SPARK_HOME), **environment)


def test_executors_without_the_package(
    cluster: SparkCluster, python: Path, bare: Path, tmp_path: Path
) -> None:
    """The job `doctor` names them."""
    command = [str(python), "-m", "babelqueue_spark.jobs", "doctor", "--master", cluster.url]
    done = subprocess.run(
        command,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PYSPARK_PYTHON": str(bare),
            "PYSPARK_SUBMIT_ARGS": shlex.join([*cluster.awaited(), "pyspark-shell"]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    lacking = [line for line in done.stdout.splitlines() if "No module named 'babelqueue_spark'" in line]
    assert len(lacking) == len(cluster.workers), done.stdout + done.stderr
    assert all(line.startswith("failed   executor 127.0.0.") for line in lacking)


def test_py_files(cluster: SparkCluster, wheel: Path, bare: Path, tmp_path: Path) -> None:
    """The wheel as a zip file, which must be on the driver's PYTHONPATH, too."""
    package = tmp_path / "babelqueue_spark.zip"
    package.write_bytes(wheel.read_bytes())
    paths = {"PYSPARK_PYTHON": str(bare), "PYTHONPATH": str(package)}
    assert "read: 3000" in submit(cluster, tmp_path, "--py-files", str(package), **paths)


def test_a_packed_environment(cluster: SparkCluster, python: Path, tmp_path: Path) -> None:
    """An archive that Spark unpacks for each executor; the driver has it in its own directory."""
    packed = tmp_path / "environment.tar.gz"
    subprocess.run(["tar", "-czf", str(packed), "-C", str(python.parents[1]), "."], check=True)
    (tmp_path / "environment").symlink_to(python.parents[1])
    said = submit(
        cluster,
        tmp_path,
        "--archives",
        f"{packed}#environment",
        PYSPARK_PYTHON="./environment/bin/python",
    )
    assert "read: 3000" in said
