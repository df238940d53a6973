"""What all tests share: a Spark session, and queues on each broker."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Short programs: compiling what they run costs more than it saves, and so does parsing Spark's classes each time.
_CLASSES = Path(sys.prefix, "spark.jsa")
_ARCHIVED = f" -XX:SharedArchiveFile={_CLASSES} -Xlog:disable" if _CLASSES.exists() else ""
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1" + _ARCHIVED)
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# Spark's workers must find the packages under test and the tests' own modules.
_ROOT = Path(__file__).parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

# Packages with tests of their own, which tests here run.
collect_ignore = ["packages"]
pytest_plugins = [
    "babelqueue_spark.testing.fixtures",
    "tests.brokers",
    "tests.envelope.passed",
    "tests.fixtures_conformance",
    "tests.groups",
    "tests.limits",
    "tests.tiers",
]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("babelqueue-spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.python.worker.faulthandler.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def hidden_here_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process shows nothing that it ever resolved from a reference: here, what other tests resolved."""
    monkeypatch.setattr("babelqueue_spark.errors._hidden", {})


@pytest.fixture
def queue() -> str:
    return f"orders-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def admission_control() -> bool:
    """Whether this PySpark lets a Python source bound the batches of an availableNow query (from 4.2)."""
    import pyspark

    return tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
