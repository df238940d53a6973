from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import ClassVar

import pytest
from proton import Message, timestamp, ulong

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.artemis import ArtemisBinding
from babelqueue_spark.testing import ENVELOPE, SECRET, BindingContract
from tests.bindings.artemis_peers import send
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

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        text = ENVELOPE.decode()
        hostile = [
            *(Message(text, delivery_count=count) for count in (2**31 - 2, 2**31 - 1, 2**32 - 1)),
            Message(text, creation_time=2**63 / 1000 - 1e6),
            Message(text, annotations={"x-opt-ingress-time": ulong(2**64 - 1)}),
            Message(text, annotations={"x-opt-ingress-time": timestamp(-(2**63))}),
        ]
        send(config, queue, hostile)
        return [ENVELOPE] * len(hostile)

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        options = {"ssl_ca_certs": str(certificates.ca)}
        return certificates.context(), BindingConfig(url="artemis+ssl://127.0.0.1:1", client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"artemis://babel:{SECRET}@127.0.0.1:1")

    def expire_claims(self, holder: Binding) -> None:
        holder.close()
