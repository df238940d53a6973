from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, ClassVar

import pika
import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.rabbitmq import RabbitBinding
from babelqueue_spark.testing import ENVELOPE, SECRET, BindingContract
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.certificates import Certificates
from tests.servers.rabbitmq import RabbitServer


def nested(depth: int, innermost: bytes) -> bytes:
    """An encoded table of tables."""
    for _ in range(depth):
        innermost = b"\x01aF" + len(innermost).to_bytes(4, "big") + innermost
    return innermost


class Raw(pika.BasicProperties):
    """Properties with a table of headers that pika would not encode."""

    def __init__(self, table: bytes, **given: Any) -> None:
        super().__init__(**given)
        self.table = len(table).to_bytes(4, "big") + table

    def encode(self) -> list[bytes]:
        """Put the table behind the flags."""
        flags, *others = super().encode()
        return [(int.from_bytes(flags, "big") | self.FLAG_HEADERS).to_bytes(2, "big"), self.table, *others]


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

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        connection = pika.BlockingConnection(pika.URLParameters(config.url))
        late = b"\x01tT" + (10**14).to_bytes(8, "big")
        frame = pika.connection.Parameters.DEFAULT_FRAME_MAX
        hostile = [
            Raw(late + b"\x01uT" + b"\xff" * 8),
            Raw(nested(1, late)),
            *(Raw(nested(depth, b"")) for depth in range(225, 500, 25)),
            Raw(nested(3_000, late)),
            Raw(b"\x01dD\xff" + b"\x7f" * 4),
            Raw(b"\x10x-delivery-countl\x7f" + b"\xff" * 7, timestamp=2**64 - 1),
            pika.BasicProperties(headers={"tracestate": "x" * (frame - 200), "other": "y"}),
        ]
        channel = connection.channel()
        channel.confirm_delivery()
        for each in hostile:
            channel.basic_publish("", queue, ENVELOPE, each)
        connection.close()
        return [ENVELOPE] * len(hostile)

    def expire_claims(self, holder: Binding) -> None:
        holder.close()
