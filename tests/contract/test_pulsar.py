from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import ClassVar

import pulsar
import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.pulsar import PulsarBinding
from babelqueue_spark.testing import ENVELOPE, MIB, BindingContract, Connect, claim_some, outgoing, take
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.certificates import Certificates
from tests.servers.pulsar import PulsarServer


class TestPulsar(DefaultTimeouts, BindingContract):
    binding_class = PulsarBinding
    no_queues = ("a/b", "persistent://x", "non-persistent://public/default/orders", "__change_events")
    own_suffixes = ("-partition-0",)
    shortest_timeout = None
    impatient: ClassVar = {"operation_timeout_seconds": "2", "connection_timeout_ms": "1000"}
    largest_body = 4 * MIB

    @pytest.fixture
    def config(self, pulsar_server: PulsarServer) -> BindingConfig:
        return BindingConfig(url=pulsar_server.url)

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        client = pulsar.Client(config.url)
        producer = client.create_producer(queue)
        producer.send(ENVELOPE, properties={"\0": "\0", "": ""}, event_timestamp=2**63 - 1)
        client.close()
        return [ENVELOPE]

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        options = {"tls_trust_certs_file_path": str(certificates.ca)}
        return certificates.context(), BindingConfig(url="pulsar+ssl://127.0.0.1:1", client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url="pulsar://127.0.0.1:1", client_options={"operation_timeout_seconds": "1"})

    def expire_claims(self, holder: Binding) -> None:
        holder.close()

    def test_a_claimed_message_is_nobody_elses(self, connect: Connect, queue: str) -> None:
        """The broker sends a claimer more than it takes, which others get when its claims are settled."""
        one, other = connect(), connect()
        bodies = [b"%d" % number for number in range(10)]
        one.publish(queue, outgoing(bodies))
        first = claim_some(one, queue, messages=4)
        got = set(first.column("body").to_pylist())
        assert not got & set(other.claim(queue, 10, MIB).column("body").to_pylist())
        assert one.acknowledge(queue, first).true_count == 4
        other.close()
        second = take(other, queue, 6)
        assert sorted([*got, *second.column("body").to_pylist()]) == bodies
        assert one.claim(queue, 10, MIB).num_rows == other.claim(queue, 10, MIB).num_rows == 0


class TestPulsarWithAdminEndpoint(TestPulsar):
    """The backlog beyond a thousand is counted, and a browse is a reader's."""

    creates_queues = True

    @pytest.fixture
    def config(self, pulsar_server: PulsarServer) -> BindingConfig:
        return BindingConfig(url=pulsar_server.url, client_options={"admin_url": pulsar_server.admin_url})
