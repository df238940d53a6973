"""A live Kafka for the whole test run, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.kafka import KafkaServer


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with KafkaServer() as server:
        yield server
