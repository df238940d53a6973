"""The binding of Apache Kafka."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.contract import BindingConfig, Capabilities, LogBinding
from babelqueue_spark.bindings.headers import whole_numbers
from babelqueue_spark.bindings.kafka.client import ABORT_SECONDS, EARLIEST, LATEST, KafkaClient, since
from babelqueue_spark.bindings.kafka.messages import received, records
from babelqueue_spark.bindings.kafka.options import KafkaOptions

_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


class KafkaBinding(LogBinding):
    """Kafka, by one producer, and a consumer for each range that is read."""

    name = "kafka"
    title = "Kafka"
    delay_advice = "set kafka.retry_tiers_ms to longer ones"
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
        self.silence_limit = self._options.timeout + min(self._options.timeout, ABORT_SECONDS)
        self._kafka = KafkaClient(self._options)

    def check_queue(self, queue: str) -> None:
        if not _NAME.fullmatch(queue):
            raise self.refused_name(queue, "a topic has 1 to 249 letters, digits, '.', '_' and '-'")

    def check_target(self, queue: str) -> None:
        """Topics with two `_` at their start are the broker's, tiers the connector's."""
        super().check_target(queue)
        if queue.startswith("__"):
            raise self.refused_name(queue, "this topic is the broker's own")
        if self._tiers.delay_of(queue):
            raise self.refused_name(queue, "messages wait there for their next attempt")

    def beginning_offsets(self, queue: str) -> dict[int, int]:
        return self._kafka.offsets(queue, EARLIEST)

    def end_offsets(self, queue: str) -> dict[int, int]:
        """Of a tier, what is due; where transactions are open, what was before them."""
        ends = self.high_watermarks(queue)
        delay = self._tiers.delay_of(queue)
        if not delay:
            return ends
        waiting = self._kafka.offsets(queue, since(int(time.time() * 1000) - delay))
        return {number: end if waiting[number] < 0 else waiting[number] for number, end in ends.items()}

    def high_watermarks(self, queue: str) -> dict[int, int]:
        return self._kafka.offsets(queue, LATEST)

    def missing(self, queue: str) -> str:
        return "" if self._kafka.partitions(queue) else f"the topic '{queue}'"

    def read(self, queue: str, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        yield from map(received, self._kafka.read(queue, partition, first, last))

    def commit_offsets(self, queue: str, offsets: Mapping[int, int]) -> None:
        self._kafka.commit(queue, offsets)

    def origin(self, queue: str) -> str:
        return self._tiers.work_topic(queue)

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """With many unconfirmed records on their way, in a transaction where there is a key."""
        made = list(records(queue, messages, self._tiers))
        if not made:
            return 0
        if idempotency_key is None:
            return self._kafka.send(queue, made)
        return self._kafka.send_once(queue, made, idempotency_key)

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        """By what librdkafka may send at once; a topic's own limit is not asked for."""
        made = records(queue, messages, self._tiers)
        return [row for row, record in enumerate(made) if record.size() > self._options.max_bytes]

    def retry_delay(self, queue: str, delay: int, attempts: int) -> int:
        """Return the delay of the tier for so many attempts; `BrokerError` without tiers."""
        del delay
        if not self._tiers.delays:
            raise self._kafka.error(
                "retries wait in tiers: set kafka.retry_tiers_ms, such as 'default'", queue
            )
        return self._tiers.after(attempts)

    def close(self) -> None:
        self._kafka.close()

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """Return what the header says, else the body."""
        named = pc.map_lookup(deliveries.column("headers"), "bq-attempts", "first")
        return pc.coalesce(whole_numbers(named), body_attempts)
