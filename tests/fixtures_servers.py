"""One server of each kind for the whole test run, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import RedisServer
from tests.servers.artemis import ArtemisServer
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.kafka import KafkaServer
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer
from tests.servers.pulsar import PulsarServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.servicebus import ServiceBusServer


@pytest.fixture(scope="session")
def artemis_server() -> Iterator[ArtemisServer]:
    with ArtemisServer() as server:
        yield server


@pytest.fixture(scope="session")
def elasticmq_server() -> Iterator[ElasticMqServer]:
    with ElasticMqServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    with MariaDbServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def pulsar_server() -> Iterator[PulsarServer]:
    with PulsarServer() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitServer]:
    with RabbitServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def servicebus_server() -> Iterator[ServiceBusServer]:
    with ServiceBusServer() as server:
        yield server


@pytest.fixture(scope="session")
def hasty_servicebus_server() -> Iterator[ServiceBusServer]:
    """Locks lapse soon here, as if all queues had been created so."""
    with ServiceBusServer(lock_seconds=5.0) as server:
        yield server
