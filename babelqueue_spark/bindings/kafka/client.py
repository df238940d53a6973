"""Connections to Kafka, and errors that say what to do."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
    admin,
)

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, missing, too_large, unreachable
from babelqueue_spark.bindings.kafka.messages import Record
from babelqueue_spark.bindings.kafka.options import KafkaOptions
from babelqueue_spark.errors import BrokerError, DataLossError, LogEndedError

_SPEC: Any = admin.OffsetSpec  # type: ignore[attr-defined]
_FETCH = 10_000
"""Most records of one batch that is read."""
_FETCH_SECONDS = 0.1
"""How long a batch waits for its last records: offsets have gaps, where transactions ended."""
_KEYS_KEPT = 100
"""How many of a writer's batches are remembered: replays are of the last ones."""
_RETRY_SECONDS = 0.5
"""Between attempts at a transaction."""
ABORT_SECONDS = 10
"""For the end of a transaction that failed: the broker ends it by itself later."""

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_ADVICE = {
    KafkaError._AUTHENTICATION: denied(
        "it refused the login: check kafka.sasl.mechanism, its username and password"
    ),
    KafkaError._SSL: unreachable(
        "TLS failed: check kafka.security.protocol and the certificates of kafka.ssl.*"
    ),
    KafkaError._RESOLVE: unreachable("its host name is unknown: check the URL"),
    KafkaError._TRANSPORT: unreachable("it cannot be reached: check host, port and kafka.security.protocol"),
    KafkaError._ALL_BROKERS_DOWN: unreachable(
        "it cannot be reached: check host, port and kafka.security.protocol"
    ),
    KafkaError._TIMED_OUT: unreachable(
        "it did not answer in time: check host and port, or raise kafka.timeout_seconds"
    ),
    KafkaError._MSG_TIMED_OUT: unreachable(
        "it did not confirm in time: check its replicas, or raise kafka.timeout_seconds"
    ),
    **dict.fromkeys(
        (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART),
        missing("the topic does not exist, and the broker may not create it: create it first"),
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: forbidden(
        "this login may not do that: allow it to read, write and describe the topic"
    ),
    KafkaError.GROUP_AUTHORIZATION_FAILED: denied(
        "this login may not use the group: allow it, or set kafka.group.id"
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: denied(
        "this login may not use transactions: allow it those whose id begins with babelqueue-"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: too_large(
        "a message is larger than the topic takes (max.message.bytes): raise that "
        "and kafka.message.max.bytes, or keep large data elsewhere and send its address"
    ),
    **dict.fromkeys(
        _FENCED, Advice("another writer writes the same: is a query running twice on one checkpoint?")
    ),
    KafkaError.TOPIC_EXCEPTION: Advice(
        "the topic's name holds what Kafka does not allow: use letters, digits, '.', '_' and '-'"
    ),
}
_MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
_TELLING = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE)
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class KafkaClient:
    """Clients of librdkafka, made when first needed in the process that needs them."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._admin: admin.AdminClient | None = None
        self._producer: Producer | None = None
        self._idle: Consumer | None = None
        self._cause: int | None = None

    def offsets(self, topic: str, spec: Any) -> dict[int, int]:
        """Partition → offset, where a spec points to; empty where there is no such topic."""
        with self._explained(topic):
            places = [TopicPartition(topic, number) for number in self.partitions(topic)]
            if not places:
                return {}
            asked = self._connected().list_offsets(
                dict.fromkeys(places, spec),
                isolation_level=self._isolation(),
                request_timeout=self._options.timeout,
            )
            return {
                place.partition: future.result(self._options.timeout).offset
                for place, future in asked.items()
            }

    def partitions(self, topic: str) -> list[int]:
        """Numbers of the partitions; none where there is no such topic."""
        with self._explained(topic):
            found = self._member().list_topics(topic, timeout=self._options.timeout).topics[topic]
            if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(found.error)
            return sorted(found.partitions)

    def read(self, topic: str, partition: int, first: int, last: int) -> Iterator[list[Message]]:
        with self._explained(topic):
            consumer = self._consumer(self._options.group)
            try:
                consumer.assign([TopicPartition(topic, partition, first)])
                yield from self._fetched(consumer, topic, first, last)
            finally:
                consumer.close()

    def send(self, topic: str, records: Iterable[Record]) -> int:
        """Produce; returns how many, when all are confirmed."""
        with self._explained(topic):
            if self._producer is None:
                self._producer = Producer(self._settings(**{"enable.idempotence": True}))
            outcome = _Outcome()
            self._produce(self._producer, records, outcome.delivered)
            outcome.check(self._producer.flush(self._options.timeout))
            return outcome.confirmed

    def send_once(self, topic: str, records: Sequence[Record], idempotency_key: str) -> int:
        """Produce in a transaction that also commits the idempotency key, unless that was done before.

        The first half of a key names a writer, whose last keys stand as the metadata of an offset of the
        topic, in a group of its own. Of two that write at once, one is fenced off, and finds the other's
        key. A commit fails where a record did; callbacks would hide why: the client calls them with its
        own error pending.
        """
        writer, name = idempotency_key[:16], idempotency_key[16:]
        with self._explained(topic):
            deadline = time.monotonic() + self._options.timeout
            while True:
                try:
                    return self._transact(topic, records, f"babelqueue-{writer}", name)
                except KafkaException as raised:
                    if not _passing(raised.args[0]) or time.monotonic() > deadline:
                        raise
                    threading.Event().wait(_RETRY_SECONDS)

    def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets of the group; a topic that is not there yet has none."""
        if not offsets:
            return
        with self._explained(topic):
            places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
            committed = ConsumerGroupTopicPartitions(self._options.group, places)
            asked = self._connected().alter_consumer_group_offsets(
                [committed], request_timeout=self._options.timeout
            )
            for future in asked.values():
                for place in future.result(self._options.timeout).topic_partitions:
                    if place.error is not None:
                        raise KafkaException(place.error)

    def error(self, text: str, topic: str, kind: type[BrokerError] = BrokerError) -> BrokerError:
        return kind(f"Kafka at {self._options.servers}: topic '{topic}': {text}")

    def close(self) -> None:
        if self._idle is not None:
            self._idle.close()
        self._admin = self._producer = self._idle = None

    def _fetched(self, consumer: Consumer, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        at, patience = first, time.monotonic() + self._options.timeout
        end = None
        while at < last:
            kept = []
            for message in consumer.consume(min(_FETCH, last - at), _FETCH_SECONDS):
                failed, offset = message.error(), message.offset() or 0
                if failed is None:
                    at = offset + 1
                    if offset < last:
                        kept.append(message)
                elif failed.code() == KafkaError._PARTITION_EOF:
                    at, end = max(at, offset), offset
                elif failed.code() in _GONE:
                    raise DataLossError(
                        f"Kafka at {self._options.servers}: topic '{topic}': offset {at} is gone: "
                        "its retention is shorter than the reader was away"
                    )
                elif not failed.retriable():
                    raise KafkaException(failed)
            if kept:
                patience = time.monotonic() + self._options.timeout
                yield kept
            elif at < last and time.monotonic() > patience:
                if end is not None:
                    raise LogEndedError(
                        f"Kafka at {self._options.servers}: topic '{topic}': it ends at {end}, before "
                        f"{last} which was there: it was created again, or brokers lost its end"
                    )
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _transact(self, topic: str, records: Sequence[Record], writer: str, name: str) -> int:
        producer = Producer(
            self._settings(**{"transactional.id": writer, "transaction.timeout.ms": 2 * self._milliseconds})
        )
        timeout = self._options.timeout
        producer.init_transactions(timeout)
        group = self._consumer(writer)
        try:
            if all(record.topic != topic for record in records):
                producer.list_topics(topic, timeout)  # makes it, where the broker may
            [known] = group.committed([TopicPartition(topic, 0)], timeout)
            if known.error is not None:
                raise KafkaException(known.error)
            written = (known.metadata or "").split()
            if name in written:
                return 0
            producer.begin_transaction()
            self._produce(producer, records)
            producer.flush(timeout)
            place = TopicPartition(topic, 0, 0, " ".join([*written, name][-_KEYS_KEPT:]))
            producer.send_offsets_to_transaction([place], group.consumer_group_metadata(), timeout)
            producer.commit_transaction(timeout)
        except KafkaException:
            with suppress(KafkaException):  # else readers wait until it times out
                producer.abort_transaction(min(timeout, ABORT_SECONDS))
            raise
        finally:
            group.close()
        return len(records)

    def _produce(
        self,
        producer: Producer,
        records: Iterable[Record],
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        for record in records:
            produce = partial(
                producer.produce,
                record.topic,
                record.body,
                record.key,
                on_delivery=on_delivery,
                timestamp=record.timestamp,
                headers=record.headers,
            )
            self._when_there_is_room(producer, produce)

    def _when_there_is_room(self, producer: Producer, produce: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._options.timeout
        while True:
            try:
                produce()
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT)) from None
                producer.poll(0.1)

    def _connected(self) -> admin.AdminClient:
        if self._admin is None:
            self._admin = admin.AdminClient(self._settings())
        return self._admin

    def _member(self) -> Consumer:
        """Return a consumer that reads nothing: unlike the others it makes no topic by asking for it."""
        if self._idle is None:
            self._idle = self._consumer(self._options.group)
        return self._idle

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            self._settings(
                **{
                    "group.id": group,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                }
            )
        )

    def _settings(self, **more: Any) -> dict[str, Any]:
        """Return librdkafka's settings; keys go to the partitions to which Java's clients send them."""
        return {
            "bootstrap.servers": self._options.servers,
            "partitioner": "murmur2_random",
            "message.timeout.ms": self._milliseconds,
            "log_level": 0,
            "error_cb": self._noted,
            **more,
            **self._options.client,
        }

    @property
    def _milliseconds(self) -> int:
        return self._options.timeout * 1000

    def _isolation(self) -> IsolationLevel:
        uncommitted = self._options.client.get("isolation.level") == "read_uncommitted"
        return IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED

    def _noted(self, error: KafkaError) -> None:
        if error.code() in _TELLING:
            self._cause = error.code()

    @contextmanager
    def _explained(self, topic: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as raised:
            if self._idle is not None:
                self._idle.poll(0)  # else it does not say why it cannot connect
            error = raised.args[0]
            advice = _ADVICE.get(self._cause or error.code()) or _ADVICE.get(error.code())
            advice = advice or Advice(f"the client failed with {error.name()}")
            raise self.error(advice.text, topic, advice.error) from None
        except TimeoutError:
            late = _ADVICE[KafkaError._TIMED_OUT]
            raise self.error(late.text, topic, late.error) from None


def _passing(error: KafkaError) -> bool:
    """Return whether the transaction may succeed in another attempt."""
    return error.code() in _FENCED + _MOVING or error.retriable()


class _Outcome:
    """What became of records."""

    def __init__(self) -> None:
        self.confirmed = 0
        self._refused: Counter[int] = Counter()

    def delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.confirmed += 1
        else:
            self._refused[error.code()] += 1

    def check(self, unconfirmed: int) -> None:
        """Raise what most of those failed with that are not confirmed."""
        if self._refused:
            raise KafkaException(KafkaError(self._refused.most_common(1)[0][0]))
        if unconfirmed:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))


EARLIEST, LATEST = _SPEC.earliest(), _SPEC.latest()


def since(milliseconds: int) -> Any:
    """Return the spec of the first record of that time or later."""
    return _SPEC.for_timestamp(milliseconds)
