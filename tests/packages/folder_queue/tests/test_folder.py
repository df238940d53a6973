from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_queue import FolderBinding

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.testing import BindingContract


@pytest.fixture(scope="module", autouse=True)
def without_the_sdk() -> Iterator[None]:
    yield
    assert "babelqueue" not in sys.modules


class TestFolder(BindingContract):
    binding_class = FolderBinding

    @pytest.fixture
    def config(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"folder://{tmp_path}", visibility_timeout=60)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"folder://{tmp_path}/missing")
