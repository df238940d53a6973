"""jobs/drain.py as a user runs it: a process with arguments, an exit code, and files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.drain import folder_of
from tests.streams import backlog, envelope, publish

pytestmark = [pytest.mark.spark, pytest.mark.server]

ROOT = Path(__file__).parent.parent.parent
SAME = ["urn:a:b", "urn:a_b", "urn_a:b", "urn:a.b", "..", ".", "", "urn:/a", "urn:" + "x" * 300, "urn:ä"]
ORDERS, MAILS = "urn:babel:orders:created", "urn:babel:mails:sent"


def drain(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs.drain", *arguments],
        cwd=ROOT,
        env={**os.environ, "SPARK_CONF_DIR": "", "PYSPARK_SUBMIT_ARGS": "--master local[2,4] pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_typed_per_urn_and_bad_ones_to_the_dead_letter_queue(
    spark: Any, url: str, queue: str, tmp_path: Path
) -> None:
    arguments = ["--url", url, "--queue", queue, "--output", str(tmp_path / "lake")]
    arguments += ["--schema", f"{ORDERS}=order_id BIGINT", "--option", "maxMessagesPerTrigger=40"]
    publish(url, queue, [*(envelope(n, queue) for n in range(100)), envelope(5, queue, job=MAILS), b"bad"])
    first = drain(*arguments)
    assert first.returncode == 0, first.stderr[-2000:]
    assert "poison" in first.stdout
    publish(url, queue, [envelope(n, queue) for n in range(100, 110)])
    second = drain(*arguments)
    assert second.returncode == 0, second.stderr[-2000:]

    orders = spark.read.parquet(str(tmp_path / "lake/urn_babel_orders_created"))
    assert sorted(row.order_id for row in orders.select("data.order_id").collect()) == list(range(110))
    mails = spark.read.parquet(str(tmp_path / "lake/urn_babel_mails_sent"))
    assert [row.data for row in mails.collect()] == ['{"order_id":5}']
    assert (backlog(url, queue), backlog(url, f"{queue}.dlq")) == (0, 1)


def test_what_is_wrong_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    done = drain("--url", "redis://:s3cret@127.0.0.1:1", "--queue", "q", "--output", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("drain: ")
    assert len(done.stderr.splitlines()) == 1
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [[], ["--schema", "nonsense"], ["--nonsense"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert drain(*arguments).returncode == 2


def test_help_has_an_example() -> None:
    done = drain("--help")
    assert done.returncode == 0
    assert "spark-submit jobs/drain.py" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_adds_up() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "the sum is right" in done.stdout


def test_each_urn_has_a_folder_of_its_own_within_the_output() -> None:
    folders = [folder_of(urn) for urn in SAME]
    assert len(set(folders)) == len(SAME)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]*(\.[0-9a-f]{16})?", folder) and folder for folder in folders)
    assert max(map(len, folders)) < 200
