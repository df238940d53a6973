from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import ClassVar

import pytest
from confluent_kafka import Producer

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.kafka import KafkaBinding
from babelqueue_spark.testing import ENVELOPE, SECRET, LogContract
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.certificates import Certificates
from tests.servers.kafka import KafkaServer


class TestKafka(DefaultTimeouts, LogContract):
    binding_class = KafkaBinding
    no_queues = ("__consumer_offsets", "..", "a/b", "x" * 250)
    creates_queues = True
    largest_body = 990_000
    impatient: ClassVar = {"timeout_seconds": "2"}
    queue_suffixes = (".v2", "_x", "-eu", ".a.b")

    @pytest.fixture
    def config(self, kafka_server: KafkaServer) -> BindingConfig:
        return BindingConfig(url=kafka_server.url)

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        producer = Producer({"bootstrap.servers": config.url.removeprefix("kafka://")})
        moments = [-(2**62), -62_135_596_800_001, 1]
        for moment in moments:
            producer.produce(queue, ENVELOPE, timestamp=moment, headers=[("\0", b"\xff"), ("", None)])
        assert producer.flush(30) == 0
        return [ENVELOPE] * len(moments)

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        options = {"security.protocol": "ssl", "ssl.ca.location": str(certificates.ca)}
        return certificates.context(), BindingConfig(url="kafka://127.0.0.1:1", client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        login = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
        login |= {"sasl.username": "spark", "sasl.password": SECRET, "timeout_seconds": "2"}
        return BindingConfig(url="kafka://127.0.0.1:1", client_options=login)
