"""The examples for Airflow and Dagster, run by each in an environment of its own, as the page has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from textwrap import indent

import pyarrow.parquet
import pytest

from tests.streams import backlog, envelope, publish

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/orchestrators.md").read_text()
RUN = {
    "airflow": """
import subprocess, sys
subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True)
assert str(dag.test().state) == "success"
""",
    "dagster": "assert dagster.materialize([orders]).success\n",
}
PACKAGES = {"airflow": "apache-airflow", "dagster": "dagster"}

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("scheduler", RUN)
def test_each_run_drains_what_is_there(scheduler: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "scheduler", with_pip=True)
    python = tmp_path / "scheduler/bin/python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", PACKAGES[scheduler]], check=True)
    url = f"sqlite:///{tmp_path}/queue.db"
    for first in (0, 20):
        publish(url, "orders", [envelope(n) for n in range(first, first + 20)])
        run(scheduler, python, url, tmp_path)
        assert backlog(url, "orders") == 0
    rows = pyarrow.parquet.read_table(tmp_path / "mnt/lake/orders").to_pylist()
    assert len(rows) == len({row["id"] for row in rows}) == 40


def run(scheduler: str, python: Path, url: str, folder: Path) -> None:
    [example] = re.findall(rf"## {scheduler.title()}\n.*?```python\n(.*?)```", PAGE, re.S)
    placed = example.replace("/mnt/", f"{folder}/mnt/").replace(
        "/opt/babelqueue/bin", str(Path(sys.executable).parent)
    )
    assert placed.count(str(folder)) == 2
    program = folder / "home/dags/example.py"  # Airflow finds its DAGs there
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'{placed}\nif __name__ == "__main__":\n{indent(RUN[scheduler], "    ")}')
    done = subprocess.run(
        [str(python), str(program)],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"},
            "PYTHONPATH": str(ROOT),
            "ORDERS_URL": url,
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "DAGSTER_HOME": str(folder / "home"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
