"""The brokers on which whole streams are tested, and one server of each kind for the whole test run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import RedisServer, Server
from tests.servers.artemis import ArtemisServer
from tests.servers.aws import AwsServer
from tests.servers.certificates import Certificates
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.kafka import KafkaServer
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer, with_pgmq
from tests.servers.pulsar import PulsarServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisClusterServers, RedisSentinelServers
from tests.servers.servicebus import ServiceBusServer

SERVERS = {
    "redis": "redis_server",
    "rabbitmq": "rabbitmq_server",
    "sqs": "elasticmq_server",
    "pulsar": "pulsar_server",
    "kafka": "kafka_server",
    "kinesis": "aws_server",
    "artemis": "artemis_server",
    "servicebus": "hasty_servicebus_server",
    "postgresql": "postgresql_server",
    "mariadb": "mariadb_server",
}
"""Broker → the fixture of its server; `sqlite` needs none."""

URLS = {
    "sql": "sqlite:////srv/q.db",
    "redis": "redis://127.0.0.1:1",
    "rabbitmq": "amqp://127.0.0.1:1",
    "sqs": "sqs://eu-west-1",
    "pulsar": "pulsar://127.0.0.1:1",
    "artemis": "artemis://127.0.0.1:1",
    "servicebus": "servicebus://127.0.0.1:1",
    "kafka": "kafka://127.0.0.1:1",
    "kinesis": "kinesis://eu-west-1",
    "firehose": "firehose://eu-west-1",
}
"""Binding → a URL at which nobody listens."""

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


def shared(start: Callable[[], AbstractContextManager[Any]]) -> Any:
    """A fixture: a server that starts when a test first asks for it."""

    @pytest.fixture(scope="session")
    def server() -> Iterator[Any]:
        with start() as started:
            yield started

    return server


artemis_server = shared(ArtemisServer)
aws_server = shared(AwsServer)
elasticmq_server = shared(ElasticMqServer)
kafka_server = shared(KafkaServer)
mariadb_server = shared(MariaDbServer)
postgresql_server = shared(PostgresServer)
pulsar_server = shared(PulsarServer)
rabbitmq_server = shared(RabbitServer)
redis_cluster = shared(RedisClusterServers)
redis_sentinels = shared(lambda: RedisSentinelServers("of-the-servers", "of-the-sentinels"))
redis_server = shared(RedisServer)
servicebus_server = shared(ServiceBusServer)
hasty_servicebus_server = shared(lambda: ServiceBusServer(lock_seconds=20.0))
"""Its locks lapse soon, as if all queues had been created so."""


@pytest.fixture(scope="session")
def pgmq_url(postgresql_server: PostgresServer) -> str:
    """A database with pgmq."""
    return with_pgmq(postgresql_server)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, and what it has issued."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


def url_of(broker: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The connection string of a live broker; an embedded one lies in `folder`."""
    if broker == "sqlite":
        return f"sqlite:///{folder}/queue.db"
    server: Any = request.getfixturevalue(SERVERS[broker])
    return str(server.url)


@pytest.fixture(params=TWO_KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a live broker, for each of `TWO_KINDS`."""
    return url_of(request.param, request, tmp_path)
