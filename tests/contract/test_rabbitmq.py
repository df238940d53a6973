from __future__ import annotations

import ssl
from typing import ClassVar

import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.rabbitmq import RabbitBinding
from babelqueue_spark.testing import SECRET, BindingContract
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.certificates import Certificates
from tests.servers.rabbitmq import RabbitServer


class TestRabbit(DefaultTimeouts, BindingContract):
    binding_class = RabbitBinding
    own_suffixes = (".delay.5000", ".delay.quorum.5000")
    creates_queues = True
    shortest_timeout = None
    impatient: ClassVar = {"socket_timeout": "1s", "stack_timeout": "1s", "heartbeat": "1"}

    @pytest.fixture
    def config(self, rabbitmq_server: RabbitServer) -> BindingConfig:
        return BindingConfig(url=rabbitmq_server.url)

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        options = {"ssl_ca_certs": str(certificates.ca)}
        return certificates.context(), BindingConfig(url="amqps://127.0.0.1:1/", client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"amqp://babel:{SECRET}@127.0.0.1:1/")

    def expire_claims(self, holder: Binding) -> None:
        holder.close()
