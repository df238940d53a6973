"""A session with Delta Lake and Iceberg; their jars are for PySpark 4.1 alone, which `make test-oldest` runs on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pyspark
import pytest

from tests.lakehouse import page

collect_ignore_glob = [] if pyspark.__version__.startswith("4.1.") else ["test_*.py"]


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join([*page.SUBMITTED, "pyspark-shell"]))
        session = page.session(tmp_path_factory.mktemp("lakehouse"))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
