"""A Declarative Pipeline over queues, as `spark-pipelines` runs it, and what its page says of its limits."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark import pipelines

from tests.programs import CONNECT_ON_A_FREE_PORT, ROOT, run_command
from tests.streams import backlog, envelope, publish

PROJECT = ROOT / "jobs/pipeline"
PAGE = ROOT / "docs/pipelines.md"
UNPROTECTED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def mails():
    queue = {"url": "env:ORDERS_URL", "queue": "mails", "journalLocation": "/mnt/streams/mails/journal"}
    return spark.readStream.format("babelqueue").options(**queue).load()
"""


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.suffix in (".py", ".yml", ".conf")]


@pytest.mark.parametrize("file", files(PROJECT), ids=lambda file: file.name)
def test_the_page_shows_the_project(file: Path) -> None:
    assert file.read_text() in PAGE.read_text()


def test_an_open_source_pipeline_has_no_place_for_a_worker() -> None:
    assert not hasattr(pipelines, "foreach_batch_sink")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def pipeline(url: str, tmp_path: Path) -> Callable[..., str]:
    """Runs `spark-pipelines` on a copy of the project, with files of the test's own."""
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    with (project / "conf/spark-defaults.conf").open("a") as conf:
        conf.write("spark.sql.pipelines.maxFlowRetryAttempts 20\n")  # for a busy machine

    def command(*words: str, **more: str) -> str:
        for name, text in more.items():
            (project / f"transformations/{name}.py").write_text(text)
        for file in files(project):
            file.write_text(file.read_text().replace("/mnt/", f"{tmp_path}/"))
        programs = Path(sys.executable).parent
        return run_command(
            [str(programs / "spark-pipelines"), *words],
            project,
            PATH=f"{programs}:{os.environ['PATH']}",
            PYTHONPATH=str(ROOT),
            SPARK_CONF_DIR="conf",
            ORDERS_URL=url,
            **CONNECT_ON_A_FREE_PORT,
        )

    return command


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    files = sorted((folder / "lake" / table).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_pipeline_reads_queues_and_a_full_refresh_brings_nothing_back(
    pipeline: Callable[..., str], url: str, tmp_path: Path
) -> None:
    """A protected table keeps its rows; a sink publishes all again."""
    for queue in ("orders", "mails"):
        publish(url, queue, [envelope(1), envelope(2), b"bad"])
    pipeline("run", unprotected=UNPROTECTED)
    assert len(rows(tmp_path, "orders")) == len(rows(tmp_path, "mails")) == 3
    assert backlog(url, "orders") == backlog(url, "mails") == 0
    assert backlog(url, "copies") == 2

    for queue in ("orders", "mails"):
        publish(url, queue, [envelope(3)])
    pipeline("run", "--full-refresh-all")
    assert len(rows(tmp_path, "orders")) == 4
    assert sorted(row["order_id"] for row in rows(tmp_path, "latest_orders")) == ["1", "2", "3"]
    assert len(rows(tmp_path, "mails")) == 1
    assert backlog(url, "copies") == 2 + 3


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_auto_cdc_takes_the_events_of_a_queue(pipeline: Callable[..., str]) -> None:
    """It is validated alone: the tables of no released connector can be its target (PySpark 4.1 does not have it)."""
    if not hasattr(pipelines, "create_auto_cdc_flow"):
        return
    [_, current] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert "Run is COMPLETED" in pipeline("dry-run", current=current)
