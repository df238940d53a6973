from __future__ import annotations

import ssl
from typing import ClassVar

import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.artemis import ArtemisBinding
from babelqueue_spark.testing import SECRET, BindingContract
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.artemis import ArtemisServer
from tests.servers.certificates import Certificates


class TestArtemis(DefaultTimeouts, BindingContract):
    binding_class = ArtemisBinding
    no_queues = ("activemq.management", "activemq.notifications", "$.artemis.internal.sf.one")
    shortest_timeout = None
    impatient: ClassVar = {"timeout": "1s"}

    @pytest.fixture
    def config(self, artemis_server: ArtemisServer) -> BindingConfig:
        return BindingConfig(url=artemis_server.url)

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        options = {"ssl_ca_certs": str(certificates.ca)}
        return certificates.context(), BindingConfig(url="artemis+ssl://127.0.0.1:1", client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"artemis://babel:{SECRET}@127.0.0.1:1")

    def expire_claims(self, holder: Binding) -> None:
        holder.close()
