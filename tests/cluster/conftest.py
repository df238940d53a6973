"""A cluster, and an environment on it that has the wheel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import installed
from tests.servers.cluster import SparkCluster


@pytest.fixture(scope="package")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="package")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of driver and executors, which has the wheel."""
    return installed.environment(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as running:
        yield running
