"""The wheel in a fresh environment, and all that is for users by both doors to Spark: classic and Connect."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from babelqueue_spark import __version__
from babelqueue_spark.bindings import BINDINGS
from tests.programs import CONNECT_ON_A_FREE_PORT, run_command
from tests.streams import envelope, publish

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.spark

PROGRAM = """
import os
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
from babelqueue_spark import functions as bq
print("valid:", copies.where(bq.validate("body").isNull() & bq.urn_matches("job", "urn:babel:*")).count())
from babelqueue_spark.worker import Outgoing, Worker
worker = Worker({"url": url}, state=folder + "/worker")
worker.handler("urn:babel:*")(lambda message: None)
print("handled:", worker.run(copies).acked)
checkpoint = folder + "/handled"
worker = Worker({"url": url}, state=folder + "/streaming", checkpoint=checkpoint)
@worker.handler("urn:babel:orders:*")
def answer(message):
    return Outgoing(job="urn:babel:answers:sent", data=message.data, queue="answers")
@worker.dataframe_handler("urn:babel:invoices:*", timeout=60)
def keep(frame, number):
    frame.select("job", "data").write.mode("append").parquet(folder + "/invoices")
    return frame.selectExpr("'urn:babel:invoices:kept' AS job", "data", "'kept' AS queue")
reader = spark.readStream.format("babelqueue").options(url=url, queue="copies", journalLocation=folder + "/copies")
query = (reader.load().writeStream.foreachBatch(worker).option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start())
query.awaitTermination(90)
assert query.exception() is None, query.exception()
answers = spark.read.format("babelqueue").options(url=url, queue="answers").load()
print("answers:", answers.where("error IS NULL").count())
print("kept:", spark.read.format("babelqueue").options(url=url, queue="kept").load().count())
print("invoices:", spark.read.parquet(folder + "/invoices").count())
print("of the query:", os.listdir(folder + "/streaming") == [query.id])
spark.stop()
"""


def run(python: Path, url: str, folder: Path, remote: str, **environment: str) -> str:
    pythons = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    return run_command(
        [str(python), "-c", PROGRAM, url, str(folder), remote], folder, **pythons, **environment
    )


@pytest.fixture
def queue_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/queue.db"
    invoices = [envelope(n, job="urn:babel:invoices:sent") for n in range(5)]
    publish(url, "orders", [*(envelope(n) for n in range(20)), *invoices, b"bad"])
    return url


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("remote", ["classic", "connect"])
def test_read_and_write(queue_url: str, tmp_path: Path, remote: str) -> None:
    environment = {"PYTHONPATH": str(ROOT), **CONNECT_ON_A_FREE_PORT}
    said = run(Path(sys.executable), queue_url, tmp_path, remote, **environment)
    assert said.splitlines()[-7:] == [
        "copies: 25",
        "valid: 25",
        "handled: 25",
        "answers: 20",
        "kept: 5",
        "invoices: 5",
        "of the query: True",
    ]


def install(python: Path, what: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", what], check=True, capture_output=True)


def fails(python: Path, program: str) -> str:
    """The last line that a program writes, which fails."""
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    return done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, capture_output=True
    )
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [found] = dist.glob("*.whl")
    return found


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """The Python of an environment with the wheel, and no more than that needs."""
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh/bin/python"
    install(python, str(wheel))
    return python


@pytest.mark.slow
def test_what_is_built(dist: Path, wheel: Path) -> None:
    [source] = dist.glob("*.tar.gz")
    for checked in (
        ["twine", "check", "--strict", str(wheel), str(source)],
        ["check_wheel_contents", str(wheel)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *checked], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert {"babelqueue_spark/py.typed", "babelqueue_spark/jobs/log4j2.properties"} <= set(
        ZipFile(wheel).namelist()
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_without_extras(python: Path) -> None:
    assert not list(python.parents[1].glob("lib/*/site-packages/pyspark"))
    assert 'pip install "babelqueue-spark[spark]"' in fails(python, "import babelqueue_spark.functions")
    for broker in BINDINGS:
        program = f"from babelqueue_spark.bindings import binding_class; binding_class('{broker}')"
        assert f'pip install "babelqueue-spark[{broker}]"' in fails(python, program)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_with_spark(wheel: Path, python: Path, queue_url: str, tmp_path: Path) -> None:
    install(python, f"{wheel}[spark,sql]")
    assert "copies: 25" in run(python, queue_url, tmp_path, "classic")
    command = str(python.with_name("babelqueue-spark"))
    assert 'pip install "babelqueue-spark[jobs]"' in run_command([command, "tail", "--help"], tmp_path)
    [files] = run_command([command, "--files"], tmp_path).splitlines()
    submitter = str(python.with_name("spark-submit"))
    submitted = [submitter, "--master", "local[1]", f"{files}/doctor.py"]
    environment = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    assert __version__ in run_command(submitted, tmp_path, **environment)


def test_one_version() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert metadata["project"]["version"] == __version__
