"""What can be shown of Databricks without a workspace: its libraries, its volumes, and what serverless compute refuses."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

from tests.programs import CONNECT_ON_A_FREE_PORT, run
from tests.streams import envelope, publish
from tests.test_install import ROOT
from tests.test_install import run as read_and_write

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import errno, os, sys
from tests.links import refuse_hard_links
refuse_hard_links()
url, folder = sys.argv[1:]
try:
    os.link(sys.executable, folder + "/linked")
except OSError as error:
    assert error.errno == errno.ENOTSUP, error
else:
    sys.exit("hard links work")

from pyspark.sql import SparkSession
from babelqueue_spark import BabelQueueDataSource, functions as bq
from babelqueue_spark.worker import Outgoing, Worker
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(BabelQueueDataSource)

def as_on_serverless_compute():
    from pyspark.sql.connect.dataframe import DataFrame
    def refused(*_, **__):
        raise RuntimeError("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported on serverless compute")
    DataFrame.persist = DataFrame.cache = refused

as_on_serverless_compute()
try:
    spark.range(1).persist()
except RuntimeError:
    pass
else:
    sys.exit("persist works")

def read(queue):
    return spark.readStream.format("babelqueue").options(
        url=url, queue=queue, journalLocation=f"{folder}/{queue}/journal").load()

def finish(writer, queue):
    query = writer.option("checkpointLocation", f"{folder}/{queue}/checkpoint").trigger(availableNow=True).start()
    assert query.awaitTermination(120), "the query did not end"
    assert query.exception() is None, query.exception()

def browse(queue):
    return spark.read.format("babelqueue").options(url=url, queue=queue).load()

finish(read("orders").where("error IS NULL").selectExpr("job", "data").writeStream.format("babelqueue")
    .options(url=url, queue="copies"), "orders")
copies = browse("copies")
print("left:", browse("orders").count(), "copies:", copies.where(bq.validate("body").isNull()).count())
copies.selectExpr("job", "data").write.format("babelqueue").options(url=url, queue="again").mode("append").save()
print("again:", browse("again").count())

checkpoint = folder + "/copies/checkpoint"
worker = Worker({"url": url}, state=folder + "/worker", checkpoint=checkpoint)
@worker.handler("urn:babel:orders:*")
def answer(message):
    return Outgoing(job="urn:babel:answers:sent", data=message.data, queue="answers")
def handle(batch, number):  # in a process of the server
    as_on_serverless_compute()
    worker(batch, number)
finish(read("copies").writeStream.foreachBatch(handle), "copies")
print("answers:", browse("answers").count())
spark.stop()
"""


def test_serverless_compute_and_volumes(tmp_path: Path) -> None:
    """Over Spark Connect, without hard links, `persist` and `cache`, by `availableNow` alone."""
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", [*(envelope(n) for n in range(20)), b"bad"])
    said = run(PROGRAM, url, str(tmp_path), **CONNECT_ON_A_FREE_PORT)
    assert said.splitlines()[-3:] == ["left: 0 copies: 20", "again: 20", "answers: 20"]


RUNTIMES = {
    "Databricks Runtime 18 and serverless environment 5": """
        boto3~=1.40.45
        certifi~=2025.4.26
        cryptography~=44.0.1
        fsspec~=2023.5.0
        jiter~=0.12.0
        numpy~=2.1.3
        pandas~=2.2.3
        pyarrow~=21.0.0
        requests~=2.32.3
        setuptools~=78.1.1
        six~=1.17.0
        typing-extensions~=4.12.2
        urllib3~=2.3.0
    """,
    "Databricks Runtime 19 and serverless environment 6": """
        boto3~=1.40.46
        certifi~=2025.11.12
        cryptography~=46.0.3
        fsspec~=2023.5.0
        googleapis-common-protos~=1.71.0
        grpcio~=1.76
        grpcio-status~=1.76
        numpy~=2.3.4
        pandas~=2.3.3
        protobuf~=6.33.5
        pyarrow~=21.0.0
        requests~=2.32.5
        six~=1.17.0
        typing-extensions~=4.15.0
        urllib3~=2.5.0
        zstandard~=0.25.0
    """,
}
"""What Databricks lists of its libraries that this package, its clients or PySpark need."""


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_libraries_of_a_runtime(runtime: str, tmp_path: Path) -> None:
    """None of them is replaced, and with them and PySpark 4.1 the package reads and writes."""
    (tmp_path / "libraries.txt").write_text(RUNTIMES[runtime].replace(" ", ""))
    venv.create(tmp_path / "runtime", with_pip=True)
    python = tmp_path / "runtime/bin/python"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        str(tmp_path / "libraries.txt"),
    ]
    done = subprocess.run(
        [*install, f"{ROOT}[spark,sql,redis,rabbitmq,sqs,servicebus]", "pyspark==4.1.*"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    url = f"sqlite:///{tmp_path}/queue.db"
    invoices = [envelope(n, job="urn:babel:invoices:sent") for n in range(5)]
    publish(url, "orders", [*(envelope(n) for n in range(20)), *invoices, b"bad"])
    assert "copies: 25\nvalid: 25\nhandled: 25\nanswers: 20\n" in read_and_write(
        python, url, tmp_path, "classic"
    )
