from __future__ import annotations

import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.rabbitmq import RabbitBinding
from babelqueue_spark.testing import SECRET, BindingContract
from tests.servers.rabbitmq import RabbitServer


class TestRabbit(BindingContract):
    binding_class = RabbitBinding
    shortest_timeout = None

    @pytest.fixture
    def config(self, rabbitmq_server: RabbitServer) -> BindingConfig:
        return BindingConfig(url=rabbitmq_server.url)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"amqp://babel:{SECRET}@127.0.0.1:1/")

    def expire_claims(self, holder: Binding) -> None:
        holder.close()
