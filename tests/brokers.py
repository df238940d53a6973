"""The brokers on which whole streams are tested, each with a live server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.bindings import binding_class, broker_of
from tests.servers import RedisServer, Server
from tests.servers.artemis import ArtemisServer
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.kafka import KafkaServer
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer
from tests.servers.pulsar import PulsarServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.servicebus import ServiceBusServer

SERVERS = {
    "redis": "redis_server",
    "rabbitmq": "rabbitmq_server",
    "sqs": "elasticmq_server",
    "pulsar": "pulsar_server",
    "kafka": "kafka_server",
    "artemis": "artemis_server",
    "servicebus": "hasty_servicebus_server",
    "postgresql": "postgresql_server",
    "mariadb": "mariadb_server",
}
"""Broker → the fixture of its server; `sqlite` needs none."""

TWO_KINDS = ["sqlite", "redis"]
"""For what does not depend on the broker: one with a transaction for all, one without."""

DURABLE: dict[str, Callable[[], Server]] = {
    "Redis": lambda: RedisServer(appendonly="yes", appendfsync="always"),
    "RabbitMQ": RabbitServer,
    "SQS": lambda: ElasticMqServer(durable=True),
    "Pulsar": PulsarServer,
    "Kafka": KafkaServer,
    "Artemis": ArtemisServer,
    "Service Bus": ServiceBusServer,
    "PostgreSQL": PostgresServer,
    "MariaDB": MariaDbServer,
}
"""What errors call a broker → a server of it that keeps its messages while it is stopped."""


def url_of(broker: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The connection string of a live broker; an embedded one lies in `folder`."""
    if broker == "sqlite":
        return f"sqlite:///{folder}/queue.db"
    server: Any = request.getfixturevalue(SERVERS[broker])
    return str(server.url)


def short_claims(url: str) -> dict[str, str]:
    """Options with which the claims of a dead reader come back soon."""
    broker = broker_of(url)
    assert broker is not None
    if binding_class(broker).capabilities.visibility_timeout is None:
        return {}
    # SQS takes no acknowledge after the time, the others do as long as nobody else has claimed.
    return {"visibilityTimeout": "15s" if url.startswith("sqs") else "2s"}
