"""The binding of Apache Pulsar."""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pulsar
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import chunks, counted_attempts, deliveries
from babelqueue_spark.bindings.contract import Binding, BindingConfig, Capabilities
from babelqueue_spark.bindings.headers import whole_numbers
from babelqueue_spark.bindings.pulsar.claims import Claims
from babelqueue_spark.bindings.pulsar.client import PulsarClient
from babelqueue_spark.bindings.pulsar.consumer import BufferedConsumer
from babelqueue_spark.bindings.pulsar.messages import (
    EntryId,
    Held,
    Unit,
    again,
    claim_text,
    claimed,
    claims_of,
    due,
    entry_of,
    properties,
    split,
    units_of,
)
from babelqueue_spark.bindings.pulsar.options import PulsarOptions
from babelqueue_spark.errors import BrokerError

_PREFETCH = 5_000
_LOOK = 1_000
"""So many messages at most are looked at to tell how many there are."""
_MANY = 1_000_000
"""The backlog when there are more than that and nobody tells how many."""
_MAX_MESSAGE_SIZE = 5 << 20
"""A broker's by default; the client does not tell what it learned of another."""
_FRAME_BYTES = 1_024
"""Around the body and the properties, at most."""
_BROWSE_MESSAGES = 1_000
_BROWSE_BYTES = 32 << 20


def _properties_size(given: dict[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in given.items())


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Pause the collector while many objects without cycles are made: its walks took a quarter."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


_TOPIC = re.compile(r"(?:(?:non-)?persistent://[^/]+/[^/]+/.+|[^/]+(?:/[^/]+/.+)?)")
_OWN = re.compile(r"^non-persistent://|(?:^|/)__[^/]*\Z|-partition-[0-9]+\Z")


class PulsarBinding(Binding):
    """Pulsar, by a consumer for each queue that is read and a producer for each that is written."""

    name = "pulsar"
    title = "Pulsar"
    capabilities = Capabilities(
        claim_batch=10_000,
        publish_batch=10_000,
        durable_receipts=True,
        connection_claims=True,
        max_delay=None,
        browse="exact",
        ordered=False,
        keys=True,
        headers=True,
        native_dead_letters=True,
        double_deliveries=True,
        intrusive_backlog=True,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self._options = PulsarOptions.parse(config)
        if self._options.admin_url is None:
            self.capabilities = replace(self.capabilities, browse="intrusive")
        self.silence_limit = self._options.silence_limit
        self._pulsar = PulsarClient(self._options)
        self._consumers: dict[str, BufferedConsumer] = {}
        self._watches: dict[str, BufferedConsumer] = {}
        self._standing_by: dict[str, list[pulsar.Consumer]] = {}
        self._claims = Claims()

    def check_queue(self, queue: str) -> None:
        super().check_queue(queue)
        if not _TOPIC.fullmatch(self._pulsar.topic(queue)):
            raise self.refused_name(queue, "a topic is a name, or persistent://tenant/namespace/name")

    def check_target(self, queue: str) -> None:
        """Refuse partitions and system topics, which are the broker's, and topics that lose messages."""
        super().check_target(queue)
        if _OWN.search(queue):
            raise self.refused_name(queue, "write to the topic itself, which persists")

    def backlog(self, queue: str) -> int:
        """Messages that are ready: exact up to a thousand, beyond that a generous estimate.

        A consumer waits until a message comes, and puts it back. The broker is asked whether it is there:
        what came by now may be all that it ever says.
        """
        self._stand_by(queue)
        self._pulsar.greet(queue)
        with self._pulsar.explained(queue):
            consumer = self._consumers.get(queue)
            own = consumer.waiting(_LOOK) if consumer else 0
            watch = self._watch(queue)
            found, largest = watch.waiting(_LOOK), watch.largest()
            connected = watch.connected()
        if found or not connected:
            self._stop_watching(queue)
        if not found and not connected:
            raise self._pulsar.error("the connection was lost", queue)
        if found < _LOOK:
            return own + found
        entries = self._pulsar.entries_waiting(queue)
        return own + (_MANY if entries is None else max(found, entries * largest))

    def missing(self, queue: str) -> str:
        """As the admin endpoint says; clients cannot ask without creating."""
        return f"the topic '{queue}'" if self._pulsar.is_missing(queue) else ""

    @_collector_at_rest()
    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim by a consumer that stays until its claims are settled.

        A producer's batch is claimed as a whole: the first one may exceed the bounds.
        """
        self._stop_watching(queue)
        self._stand_by(queue)
        consumer = self._consumer_of(queue, messages)
        try:
            units = self._claim(consumer, queue, messages, max_bytes)
        except BrokerError:
            self._close(queue)
            raise
        self._close_if_settled(queue)
        return claimed(units, consumer.holder) if units else deliveries(0)

    @_collector_at_rest()
    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Acknowledge by entry, which takes all messages of a producer's batch, in one call or several.

        False for those of an entry that is not complete yet, and for claims that ended with a connection
        of this binding.
        """
        self._close_if_lost(queue)
        receipts = deliveries.column("receipt").to_pylist()
        parts = claims_of(receipts)
        complete = self._claims.complete(parts)
        topics: dict[str, list[EntryId]] = defaultdict(list)
        for text in complete:
            entry = parts[text].claim.entry
            topics[entry.topic].append(entry)
        for topic, entries in topics.items():
            self._pulsar.settle(queue, topic, entries)
        self._claims.acknowledge(parts, complete)
        self._close_if_settled(queue)
        return pa.array([claim_text(receipt) in complete for receipt in receipts], pa.bool_())

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """Uncounted, when the consumer has no claim left; until then this binding can claim them again.

        What is left of a producer's batch of which a part was acknowledged is sent again: the broker would
        give all of it out.
        """
        self._close_if_lost(queue)
        if queue not in self._consumers:
            return
        consumer = self._consumers[queue]
        ours = deliveries.filter(consumer.held_by(deliveries.column("receipt").to_pylist()))
        texts = map(claim_text, ours.column("receipt").to_pylist())
        begun = pa.array(map(self._claims.is_acknowledged, texts), pa.bool_())
        whole = ours.filter(pc.invert(begun))
        for unit in units_of(whole):
            consumer.put_back(unit)
        self._send_again(queue, ours.filter(begun), consumer)
        self._claims.drop(claims_of(whole.column("receipt").to_pylist()).values())
        self._close_if_settled(queue)

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        del idempotency_key
        if not messages.num_rows:
            return 0
        delays = pc.fill_null(messages.column("delay"), 0).to_pylist()
        bodies, keys = (messages.column(name).to_pylist() for name in ("body", "key"))
        return self._pulsar.send(queue, zip(bodies, properties(messages), keys, delays, strict=True))

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        """Find messages that the client would send, but that make a broker of default size hang up.

        Of larger ones, and those beyond another `maxMessageSize`, the client tells at once.
        """
        del queue
        bodies = pc.fill_null(pc.binary_length(messages.column("body")), 0).to_pylist()
        sizes = map(sum, zip(bodies, map(_properties_size, properties(messages)), strict=True))
        return [row for row, size in enumerate(sizes) if abs(size - _MAX_MESSAGE_SIZE) <= _FRAME_BYTES]

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Browse by a reader where the admin endpoint tells where it has to begin, else by consumers."""
        if self._options.admin_url is None:
            yield from self._browse_as_consumers(queue)
            return
        for cursor in self._pulsar.cursors(queue):
            unread = self._pulsar.read(queue, cursor, _PREFETCH)
            shown = (_unit(message) for message in unread if due(message) and not self._holds(queue, message))
            for units in chunks(shown, Unit.size, _BROWSE_MESSAGES, _BROWSE_BYTES):
                yield claimed(units, None)

    def close(self) -> None:
        for queue in list(self._consumers):
            self._close(queue)
        for queue in list(self._watches):
            self._stop_watching(queue)
        self._standing_by.clear()
        self._pulsar.close()

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """Return the larger of the sender's count (property, else body) and the broker's redeliveries."""
        named = pc.map_lookup(deliveries.column("headers"), "bq-attempts", "first")
        sent = pc.coalesce(whole_numbers(named), body_attempts)
        return counted_attempts(sent, pc.fill_null(deliveries.column("count"), 1))

    def _browse_as_consumers(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Yield what is ready now, held by consumers of their own until the last batch was taken.

        The broker bounds what a consumer may hold: where one has its fill, another continues.
        """
        self._stop_watching(queue)
        opened: list[BufferedConsumer] = []
        try:
            more = True
            while more:
                opened.append(BufferedConsumer(self._pulsar.subscribe(queue, _PREFETCH), Claims()))
                more = False
                while units := self._claim(opened[-1], queue, _BROWSE_MESSAGES, _BROWSE_BYTES):
                    more = True
                    yield claimed(units, None)
        finally:
            for consumer in reversed(opened):  # what the first ones hold shall not go to the last ones
                consumer.close()

    def _holds(self, queue: str, message: pulsar.Message) -> bool:
        consumer = self._consumers.get(queue)
        return consumer is not None and self._claims.holds(consumer.holder, entry_of(message))

    def _claim(self, consumer: BufferedConsumer, queue: str, messages: int, max_bytes: int) -> list[Unit]:
        with self._pulsar.explained(queue):
            units = consumer.claim(messages, max_bytes)
        if not consumer.connected():
            raise self._pulsar.error("the connection was lost", queue)
        return units

    def _send_again(self, queue: str, rest: pa.RecordBatch, consumer: BufferedConsumer) -> None:
        """Send messages again that were not acknowledged before; then acknowledge them."""
        places = map(split, rest.column("receipt").to_pylist())
        left = [not self._claims.is_acknowledged(text, place) for text, place in places]
        rest = rest.filter(pa.array(left, pa.bool_()))
        if not rest.num_rows:
            return
        self._pulsar.send(queue, again(rest))
        if not pc.all(self.acknowledge(queue, rest)).as_py() and self._claims.has_ended(consumer.holder):
            raise self._pulsar.error(
                "the connection was lost while a part of a batch was put back: it is there twice", queue
            )

    def _stand_by(self, queue: str) -> None:
        """Be a consumer that receives nothing as long as the binding is open.

        When the last consumer leaves, a broker forgets the redeliveries it counted, may give messages to two
        of the next ones, and Pulsar 4.0 may get stuck over what it was about to deliver again.
        """
        if queue not in self._standing_by:
            self._standing_by[queue] = self._pulsar.stand_by(queue)

    def _consumer_of(self, queue: str, messages: int) -> BufferedConsumer:
        if queue not in self._consumers:
            consumer = self._pulsar.subscribe(queue, min(messages, _PREFETCH))
            self._consumers[queue] = BufferedConsumer(consumer, self._claims)
        return self._consumers[queue]

    def _close_if_lost(self, queue: str) -> None:
        if queue in self._consumers and not self._consumers[queue].connected():
            self._close(queue)

    def _close_if_settled(self, queue: str) -> None:
        if queue in self._consumers and not self._claims.holds_any(self._consumers[queue].holder):
            self._close(queue)

    def _close(self, queue: str) -> None:
        """Close the consumer of a queue, with which its claims end."""
        consumer = self._consumers.pop(queue)
        self._claims.end(consumer.holder)
        consumer.close()

    def _watch(self, queue: str) -> BufferedConsumer:
        if queue not in self._watches:
            self._watches[queue] = BufferedConsumer(self._pulsar.subscribe(queue, _LOOK), Claims())
        return self._watches[queue]

    def _stop_watching(self, queue: str) -> None:
        if queue in self._watches:
            self._watches.pop(queue).close()


def _unit(message: pulsar.Message) -> Unit:
    held = Held.of(message.message_id().batch_index(), message)
    return Unit.of(entry_of(message), message, [held])
