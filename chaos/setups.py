"""What is tried: a line for each broker, each kind of its queues, and each way to run Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pika

from tests.servers import RedisServer, Server
from tests.servers.artemis import ArtemisServer
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.kafka import KafkaServer
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgresql import PostgresServer
from tests.servers.pulsar import PulsarServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.servicebus import ServiceBusServer

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
LEASE = {"visibilityTimeout": "10s"}
LAPSES = frozenset({"stall", "freeze", "delay", "store late", "store 503", "clock"})
"""Faults that may make a claim outlive its timeout, after which a message may be read twice."""


@dataclass(frozen=True)
class Setup:
    """A broker and what runs on it.

    Attributes:
        title: what the report calls it.
        server: makes the server; None = the queue is a file.
        options: of reads and of the worker.
        declare: makes the queues, by URL and names, where the first message would make them otherwise.
        suffix: of the names of queues.
        groups: keys of the messages in turn, where those of one key wait for each other; 0 = no keys.
        tiers: suffixes of the topics that the worker's query reads too.
        survives: whether the server keeps what it has confirmed when it is killed; None is killed instead.
        doubles: faults after which a message may be in the table twice; docs/guarantees.md says why.
        connect: the program runs over Spark Connect.
        bucket: the journals are on an object store.
        cluster: Spark is a standalone cluster of two workers.
    """

    title: str
    server: Callable[[], Server] | None
    options: Mapping[str, str] = field(default_factory=dict)
    declare: Callable[[str, list[str]], None] | None = None
    suffix: str = ""
    groups: int = 0
    tiers: tuple[str, ...] = ()
    survives: bool = True
    doubles: frozenset[str] = frozenset()
    connect: bool = False
    bucket: bool = False
    cluster: bool = False

    def queue(self, name: str) -> str:
        """The queue of a role, as this broker calls it."""
        return f"{name}{self.suffix}"


def _quorum(url: str, queues: list[str]) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        for queue in queues:
            connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})


def _redis() -> Server:
    return RedisServer("s3cret-w0rd", **DURABLE)


SETUPS = {
    "redis": Setup("Redis", _redis, LEASE, doubles=LAPSES),
    "redis-connect": Setup("Redis, Spark Connect", _redis, LEASE, doubles=LAPSES, connect=True),
    "redis-s3": Setup("Redis, journal on S3", _redis, LEASE, doubles=LAPSES, bucket=True),
    "redis-cluster": Setup("Redis, two Spark workers", _redis, LEASE, doubles=LAPSES, cluster=True),
    "sqlite": Setup("SQLite", None, LEASE, doubles=LAPSES),
    "postgresql": Setup("PostgreSQL", PostgresServer, LEASE, doubles=LAPSES),
    "mariadb": Setup("MariaDB", MariaDbServer, LEASE, doubles=LAPSES),
    "rabbitmq": Setup("RabbitMQ, classic queues", RabbitServer, doubles=LAPSES),
    "quorum": Setup("RabbitMQ, quorum queues", RabbitServer, declare=_quorum, doubles=LAPSES),
    "kafka": Setup(
        "Kafka",
        KafkaServer,
        {"kafka.retry_tiers_ms": "500,1000"},
        tiers=(".retry.1", ".retry.2"),
    ),
    "sqs": Setup(
        "SQS, standard queues (ElasticMQ)",
        lambda: ElasticMqServer(durable=True),
        {"visibilityTimeout": "15s"},
        survives=False,
        doubles=LAPSES,
    ),
    "fifo": Setup(
        "SQS, FIFO queues (ElasticMQ)",
        lambda: ElasticMqServer(durable=True),
        {"visibilityTimeout": "15s"},
        suffix=".fifo",
        groups=100,
        survives=False,
        doubles=LAPSES,
    ),
    "artemis": Setup("Artemis", ArtemisServer, doubles=LAPSES),
    "pulsar": Setup("Pulsar", PulsarServer, doubles=frozenset({"broker", "cut", "freeze", "delay"})),
    "servicebus": Setup(
        "Service Bus (stand-in)",
        lambda: ServiceBusServer(lock_seconds=10.0),
        survives=False,
        doubles=LAPSES,
    ),
}
"""By the names that `--brokers` takes."""
