"""What the programs of the crash tests share: how a test starts one, and how it starts Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def run(
    program: Path,
    folder: Path,
    arguments: list[str],
    target: str,
    points: Mapping[str, str],
    **environment: str,
) -> tuple[int, str]:
    """Exit code and log of a program, which must reach the points it is armed with: queue → point.

    `inject/sitecustomize.py` says what is in its environment.
    """
    control = folder / "control"
    control.mkdir(exist_ok=True)
    for queue, point in points.items():
        (control / queue).write_text(point)
    log = folder / f"log-{uuid.uuid4().hex}"
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, str(program), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(HERE / "inject"), str(ROOT)]),
                "CRASH_CONTROL": str(control),
                "CRASH_TARGET": target,
                "CRASH_TASKS": str(max(2, len(points)) if target == "driver" else 2),
                **environment,
            },
            stdout=output,
            stderr=output,
            start_new_session=True,
            timeout=500,
            check=False,
        ).returncode
    text = log.read_text()[-3000:]
    unreached = [path.read_text() for path in control.iterdir() if not path.suffix]
    assert not unreached, (unreached, text)
    return code, text


def session() -> SparkSession:
    """Spark, in a program that a test started; on a cluster where CRASH_MASTER names one."""
    os.environ["CRASH_GROUP"] = str(os.getpid())
    on_executors = {
        f"spark.executorEnv.{name}": value for name, value in os.environ.items() if name.startswith("CRASH_")
    }
    spark = (
        SparkSession.builder.master(os.environ.get("CRASH_MASTER", f"local[{os.environ['CRASH_TASKS']},4]"))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(map=on_executors)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark
