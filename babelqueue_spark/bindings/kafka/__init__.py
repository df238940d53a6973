"""Apache Kafka topics, read by offsets.

Connection string: `kafka://host:port`, several hosts with commas between, or those bare with `broker` =
`kafka`. A queue is a topic. Topics are made by the broker where it may.

`docs/brokers/kafka.md` has what follows as tables, and says more.

Features:
    read: by offsets, which stand in Spark's own offsets: a replay reads the same records from Kafka
    journal: none: `journalLocation` is not needed, and passed over where it is given
    a reader dies: the task or the batch is repeated; nobody else is concerned
    order: within a partition
    delay: by retry tiers, as long as the longest one; without tiers none
    headers: record headers
    key: the record's key, as UTF-8
    browse: `spark.read` reads ranges: `startingOffsets`, `endingOffsets`
    publish once: by a transaction that also commits a marker; see *Writing once*
    dead letters: topic `<topic>.dlq`; `<topic>.failed` with `deadLetterStyle=initphp`
    `delivery` column: `id` is `partition:offset`, `enqueued_at` the record's time, `key` the key; `count` and
        `redelivered` are null
    `attempts` column: what the header `bq-attempts` says where it is a number, even when it is less, else the
        body

Options, as `kafka.<name>`:
    retry_tiers_ms: delays of `<topic>.retry.1` and so on, ascending, with commas between; `default` is
        5000,30000,300000,1800000
    group.id (`babelqueue-spark`): whose offsets monitors look at; name one for each query
    timeout_seconds (30): until the broker must have answered, or confirmed
    security.protocol, sasl.*, ssl.*: login and TLS, as librdkafka calls them; `env:NAME` and `file:/path`
        keep secrets out of plans
    compression.type, linger.ms, message.max.bytes, partitioner: of producers, these and others, as
        librdkafka calls them
    fetch.*, socket.*: of consumers and connections, these and others, as librdkafka calls them
    isolation.level (`read_committed`): `read_uncommitted` shows what transactions have not committed, or have
        aborted
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.base import BindingConfig, Capabilities, LogBinding
from babelqueue_spark.bindings.kafka.client import EARLIEST, LATEST, KafkaClient, since
from babelqueue_spark.bindings.kafka.messages import received, records
from babelqueue_spark.bindings.kafka.options import KafkaOptions
from babelqueue_spark.bindings.properties import whole_numbers

__all__ = ["KafkaBinding"]


class KafkaBinding(LogBinding):
    """Kafka, by one producer, and a consumer for each range that is read."""

    name = "kafka"
    capabilities = Capabilities(
        publish_batch=10_000,
        publish_once=True,
        max_delay=0,
        browse="exact",
        ordered=True,
        keys=True,
        headers=True,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self._options = KafkaOptions.parse(config)
        self._tiers = self._options.tiers
        if self._tiers.delays:
            self.capabilities = replace(self.capabilities, max_delay=self._tiers.delays[-1])
        self._kafka = KafkaClient(self._options)

    def beginnings(self, queue: str) -> dict[int, int]:
        return self._kafka.offsets(queue, EARLIEST)

    def ends(self, queue: str) -> dict[int, int]:
        """Of a tier, what is due; where transactions are open, what was before them."""
        ends = self.newest(queue)
        delay = self._tiers.delay_of(queue)
        if not delay:
            return ends
        waiting = self._kafka.offsets(queue, since(int(time.time() * 1000) - delay))
        return {number: end if waiting[number] < 0 else waiting[number] for number, end in ends.items()}

    def newest(self, queue: str) -> dict[int, int]:
        return self._kafka.offsets(queue, LATEST)

    def read(self, queue: str, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        yield from map(received, self._kafka.read(queue, partition, first, last))

    def note(self, queue: str, offsets: Mapping[int, int]) -> None:
        self._kafka.commit(queue, offsets)

    def home(self, queue: str) -> str:
        return self._tiers.work_topic(queue)

    def publish(self, queue: str, messages: pa.RecordBatch, *, marker: str | None = None) -> int:
        """With many unconfirmed records on their way, in a transaction where there is a marker."""
        longest = pc.max(messages.column("delay")).as_py() or 0
        if longest > (self.capabilities.max_delay or 0):
            raise self._kafka.error(
                f"a message shall wait {longest:,} ms, longer than any retry tier: set kafka.retry_tiers_ms",
                queue,
            )
        made = list(records(queue, messages, self._tiers))
        if not made:
            return 0
        return self._kafka.send(queue, made) if marker is None else self._kafka.send_once(queue, made, marker)

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        """By what librdkafka may send at once; a topic's own limit is not asked for."""
        made = records(queue, messages, self._tiers)
        return [row for row, record in enumerate(made) if record.size() > self._options.max_bytes]

    def retry_delay(self, queue: str, delay: int, attempts: int) -> int:
        """That of the tier for so many attempts, whatever is asked for; `BrokerError` without tiers."""
        del delay
        if not self._tiers.delays:
            raise self._kafka.error(
                "retries wait in tiers: set kafka.retry_tiers_ms, such as 'default'", queue
            )
        return self._tiers.after(attempts)

    def close(self) -> None:
        self._kafka.close()

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """What the header says, else the body."""
        named = pc.map_lookup(deliveries.column("headers"), "bq-attempts", "first")
        return pc.coalesce(whole_numbers(named), body_attempts)
