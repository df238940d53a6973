"""What handlers print and log, as a table of Spark's; and a session that kills silent tasks."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker import Message, Worker
from babelqueue_spark.worker.query import check_idle_timeout
from tests.programs import CONNECT_ON_A_FREE_PORT, run
from tests.streams import publish
from tests.worker.queues import order, work_off

LOGGING = "spark.sql.pyspark.worker.logging.enabled"
KILLS = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"
IDLE = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"


def speak(message: Message) -> None:
    """Print and log, as handlers do."""
    print(f"printed {message.data['n']}")
    print("printed as an error", file=sys.stderr)
    logging.getLogger("shop").warning("logged %d", message.data["n"])


def said(session: Any) -> set[tuple[str, str, str]]:
    rows = session.tvf.python_worker_logs().collect()
    return {(row.level, row.logger, row.msg) for row in rows}


def words(n: int) -> set[tuple[str, str, str]]:
    return {
        ("INFO", "stdout", f"printed {n}"),
        ("ERROR", "stderr", "printed as an error"),
        ("WARNING", "shop", f"logged {n}"),
    }


@pytest.mark.spark
def test_what_handlers_print_and_log_is_a_table_of_the_batches_session(
    spark: Any, queue: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    worker = Worker({"url": url}, state=str(tmp_path / "worker"))
    worker.handler("*")(speak)
    found: list[set[tuple[str, str, str]]] = []

    def each(frame: Any, number: int) -> None:
        worker(frame, number)
        found.append(said(frame.sparkSession))

    publish(url, queue, [order(queue, n=7)])
    spark.conf.set(LOGGING, "true")
    try:
        worker.run(spark.read.format("babelqueue").options(url=url, queue=queue).load())
        assert words(7) <= said(spark)
        work_off(spark, each, url, queue, tmp_path)
    finally:
        spark.conf.unset(LOGGING)
    assert words(7) <= found[0]


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from babelqueue_spark.worker import Worker
from tests.worker.test_logs import LOGGING, said, speak, words

url, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set(LOGGING, "true")
worker = Worker({"url": url}, state=f"{folder}/worker")
worker.handler("*")(speak)
worker.run(spark.read.format("babelqueue").options(url=url, queue="orders").load())
assert words(7) <= said(spark), said(spark)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.nightly
def test_it_is_a_table_over_connect_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", [order("orders", n=7)])
    run(PROGRAM, url, str(tmp_path), **CONNECT_ON_A_FREE_PORT)


def session(**given: str) -> Any:
    return SimpleNamespace(conf=given)


@pytest.mark.parametrize(
    "given", [{}, {KILLS: "true"}, {KILLS: "true", IDLE: "0ms"}, {KILLS: "false", IDLE: "60"}, {IDLE: "60s"}]
)
def test_a_session_that_kills_no_silent_task_is_fine(given: dict[str, str]) -> None:
    check_idle_timeout(session(**given))


@pytest.mark.parametrize("idle", ["60", "10m", "100s", "5000ms"])
def test_a_session_that_kills_silent_tasks_is_refused(idle: str) -> None:
    with pytest.raises(OptionError, match=f"kills a task that says nothing for {idle}, .*handler_timeout"):
        check_idle_timeout(session(**{KILLS: "true", IDLE: idle}))
