"""Jobs that a real spark-submit runs, by their files in the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.streams import envelope, publish

FILES = Path(__file__).parents[2] / "babelqueue_spark/jobs"

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def submit(job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    submitter = Path(sys.executable).with_name("spark-submit")
    command = [str(submitter), "--master", "local[2]", str(FILES / job), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_drain_then_read_its_dead_letters(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, "orders", [*(envelope(n) for n in range(20)), b"bad"])
    drained = submit("drain.py", "--url", url, "--queue", "orders", "--output", str(tmp_path / "lake"))
    assert drained.returncode == 0, drained.stderr[-3000:]
    assert list(tmp_path.glob("lake/urn_*/part=*/*.parquet"))
    page = tmp_path / "report.html"
    shown = submit("dead_letters.py", "--url", url, "--queue", "orders.dlq", "--html", str(page))
    assert shown.returncode == 0, shown.stderr[-3000:]
    assert "poison" in page.read_text()
