from pathlib import Path

import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sql import SqlBinding
from tests.contract.suite import SECRET, BindingContract


class TestSqlite(BindingContract):
    binding_class = SqlBinding

    @pytest.fixture
    def config(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"sqlite:///{tmp_path}/queue.db", visibility_timeout=60)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> BindingConfig:
        return BindingConfig(url=f"sqlite://:{SECRET}@/{tmp_path}/missing/queue.db")
