"""Bare Kafka clients and the published SDK's transport, for tests beside the binding's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from babelqueue.kafka_transport import KafkaTransport
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from babelqueue_spark.testing import eventually
from tests.servers.kafka import KafkaServer


def make_topic(server: KafkaServer, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    [made] = admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
    made.result(30)
    eventually(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == partitions)


def delete_before(server: KafkaServer, topic: str, partition: int, offset: int) -> None:
    """What retention does, sooner."""
    admin = AdminClient({"bootstrap.servers": server.address})
    [done] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(30)


def send(
    server: KafkaServer,
    topic: str,
    values: Sequence[bytes | None],
    *,
    headers: Sequence[Any] = (),
    partition: int = -1,
    **given: Any,
) -> None:
    """Records from a bare producer, with the same headers."""
    producer = Producer({"bootstrap.servers": server.address})
    for value in values:
        producer.produce(topic, value, headers=list(headers), partition=partition, **given)
    assert producer.flush(30) == 0


def records(server: KafkaServer, topic: str, count: int) -> list[Message]:
    """The first records of a topic, to a bare consumer."""
    consumer = Consumer(
        {"bootstrap.servers": server.address, "group.id": "bare", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        found: list[Message] = []
        eventually(lambda: found.extend(consumer.consume(count - len(found), 0.5)) or len(found) >= count)
        return found
    finally:
        consumer.close()


def headers_of(message: Message) -> dict[str, Any]:
    return {name: value and value.decode() for name, value in message.headers() or ()}


def committed(server: KafkaServer, group: str, topic: str, partition: int = 0) -> int:
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
    try:
        return consumer.committed([TopicPartition(topic, partition)], 30)[0].offset
    finally:
        consumer.close()


def commit(server: KafkaServer, group: str, topic: str, offset: int) -> None:
    """Set the offset of a group, as its members or an operator would."""
    member = Consumer({"bootstrap.servers": server.address, "group.id": group})
    member.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    member.close()


def sdk(server: KafkaServer, **options: Any) -> Any:
    """The published SDK's transport."""
    return KafkaTransport(url=server.url, **options)


def popped(transport: Any, queue: str) -> Any:
    """The next message of the SDK's transport."""
    return eventually(lambda: transport.pop(queue, timeout=1.0))


def send_gated(server: KafkaServer, queue: str, messages: Sequence[bytes], attempts: str | None) -> None:
    """Records with a header that names another schema version."""
    given: Mapping[str, str | None] = {"bq-schema-version": "2", "bq-attempts": attempts}
    send(server, queue, messages, headers=[(name, value) for name, value in given.items() if value])


def drained(found: Iterator[Any]) -> list[Any]:
    return [body for batch in found for body in batch.column("body").to_pylist()]
