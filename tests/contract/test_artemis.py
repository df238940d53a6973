from __future__ import annotations

import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.artemis import ArtemisBinding
from babelqueue_spark.testing import SECRET, BindingContract
from tests.servers.artemis import ArtemisServer


class TestArtemis(BindingContract):
    binding_class = ArtemisBinding
    shortest_timeout = None

    @pytest.fixture
    def config(self, artemis_server: ArtemisServer) -> BindingConfig:
        return BindingConfig(url=artemis_server.url)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"artemis://babel:{SECRET}@127.0.0.1:1")

    def expire_claims(self, holder: Binding) -> None:
        holder.close()
