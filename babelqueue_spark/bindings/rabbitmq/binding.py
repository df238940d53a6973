"""The binding of RabbitMQ."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pika.channel import Channel

from babelqueue_spark.bindings.batches import deliveries, fitting, names_by_content
from babelqueue_spark.bindings.contract import Binding, BindingConfig, Capabilities
from babelqueue_spark.bindings.headers import whole_numbers
from babelqueue_spark.bindings.rabbitmq.buffer import ChannelClaims, DeliveryBuffer
from babelqueue_spark.bindings.rabbitmq.client import Done, RabbitClient
from babelqueue_spark.bindings.rabbitmq.options import RabbitOptions
from babelqueue_spark.bindings.rabbitmq.publisher import LONGEST_DELAY, Publisher
from babelqueue_spark.bindings.rabbitmq.queues import Queues, is_waiting
from babelqueue_spark.errors import BrokerError

_FIRST_WINDOW = 200
_LARGE_MESSAGE = 64 << 10
_LARGEST_WINDOW = 50_000
_QUIET_SECONDS = 0.05
_STALLED_SECONDS = 1.0
_LONGEST_CLAIM = 10.0
_BROWSE_MESSAGES = 1_000
_BROWSE_BYTES = 32 << 20
_LARAVEL_ATTEMPTS = r'"attempts": (?P<attempts>[0-9]+)[,}]'


class RabbitBinding(Binding):
    """RabbitMQ, by one connection and one channel."""

    name = "rabbitmq"
    event_prefix = "cloudEvents_"
    title = "RabbitMQ"
    capabilities = Capabilities(
        claim_batch=50_000,
        publish_batch=20_000,
        connection_claims=True,
        max_delay=LONGEST_DELAY,
        browse="intrusive",
        ordered=True,
        headers=True,
        native_dead_letters=True,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self._options = RabbitOptions.parse(config)
        self.silence_limit = self._options.silence_limit
        self._client = RabbitClient(self._options)
        self._queues = Queues(self._client)
        self._publisher = Publisher(self._options, self._client, self._queues)
        self._claims = ChannelClaims()
        self._average = 0.0

    def backlog(self, queue: str) -> int:
        """Messages that are ready; one round trip."""
        self.check_queue(queue)  # the server leaves line breaks out, and no answer names the queue then
        return self._queues.ready(queue)

    def missing(self, queue: str) -> str:
        self.check_queue(queue)
        return "" if self._queues.exists(queue) else f"the queue '{queue}'"

    def make_temporary(self, queue: str, idle: float) -> None:
        self._queues.temporary(queue, int(idle * 1000))

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim by consumers one after the other, each with a prefetch that keeps to both bounds."""
        claimed: list[pa.RecordBatch] = []
        count, size, until = 0, 0, time.monotonic() + _LONGEST_CLAIM
        while count < messages and (size < max_bytes or not count) and (ready := self.backlog(queue)):
            window = self._window(messages - count, max_bytes - size)
            with self._client.consuming(queue, window) as buffer:
                full = self._fill(buffer, queue, window, max_bytes - size, ready, until)
            sizes = [len(body) for _, body, *_ in buffer.messages]
            taken = fitting(sizes, max_bytes - size, least=0 if count else 1)
            size += sum(sizes[:taken])
            self._hold(buffer)
            claimed.append(buffer.deliveries(taken))
            count += taken
            if surplus := buffer.messages[taken:]:
                self._settle([tag for tag, *_ in surplus], give_back=True)
            if count:
                self._average = size / count
            if not full or surplus or time.monotonic() > until:
                break
        return pa.concat_batches(claimed) if claimed else deliveries(0)

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Return true where the channel of the claim is still open; a whole claim goes in one frame."""
        del queue
        return self._settle_claimed(deliveries, give_back=False)

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """To their former places, marked as redelivered."""
        del queue
        self._settle_claimed(deliveries, give_back=True)

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Publish persistent and mandatory messages, many of them unconfirmed at a time."""
        del idempotency_key
        return self._publisher.publish(queue, messages)

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Yield what is ready now, held by a connection of its own until the last batch was taken."""
        with RabbitBinding(self.config) as own:
            left = own.backlog(queue)
            while left > 0:
                batch = own.claim(queue, min(left, _BROWSE_MESSAGES), _BROWSE_BYTES)
                if not batch.num_rows:
                    break
                left -= batch.num_rows
                column = batch.schema.get_field_index("receipt")
                yield batch.set_column(column, batch.schema.field(column), pa.nulls(len(batch), pa.binary()))

    def close(self) -> None:
        self._client.close()

    def check_target(self, queue: str) -> None:
        """Wait queues are the connector's."""
        super().check_target(queue)
        if is_waiting(queue):
            raise self.refused_name(queue, "messages wait there for their time")

    def identities(self, deliveries: pa.RecordBatch) -> list[str]:
        """Digests of body and `message_id`: RabbitMQ has no name for a message."""
        return names_by_content(deliveries)

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """Return the largest of the body's count and of those in headers: Laravel counts there alone."""
        headers = deliveries.column("headers")
        ours, laravel = (pc.map_lookup(headers, name, "first") for name in ("x-attempts", "laravel"))
        laravel = pc.struct_field(pc.extract_regex(laravel, _LARAVEL_ATTEMPTS), "attempts")
        return pc.max_element_wise(body_attempts, whole_numbers(ours), whole_numbers(laravel))

    def _window(self, messages: int, max_bytes: int) -> int:
        """Return how many messages may come before we look at their sizes again."""
        if not self._average:
            return max(1, min(messages, _FIRST_WINDOW, max_bytes // _LARGE_MESSAGE))
        expected = int(max_bytes / max(self._average, 1.0))
        return max(1, min(messages, expected, _LARGEST_WINDOW))

    def _fill(
        self, buffer: DeliveryBuffer, queue: str, window: int, max_bytes: int, ready: int, until: float
    ) -> bool:
        """Wait until the window is full (true), or the queue is dry, others have the rest, or it is late."""
        seen, stalled_at = 0, 0.0
        while not buffer.cancelled:
            buffer.wait(min(window, len(buffer.messages) + ready), max_bytes, _QUIET_SECONDS, until)
            if len(buffer.messages) >= window or buffer.size >= max_bytes:
                return True
            if len(buffer.messages) > seen or not stalled_at:
                seen, stalled_at = len(buffer.messages), time.monotonic() + _STALLED_SECONDS
            ready = self.backlog(queue)
            if not ready or time.monotonic() > min(stalled_at, until):
                return False
        return False

    def _hold(self, buffer: DeliveryBuffer) -> None:
        """Remember what came. With a channel its claims are gone, and may have come again on the next one."""
        former, self._claims = self._claims, buffer.claims
        if buffer.claims is not self._client.claims or (former is not buffer.claims and former):
            self._claims = ChannelClaims()
            raise BrokerError(
                f"RabbitMQ at {self._options.address}: the connection was lost while messages were claimed: "
                "they are back in the queue, and read when the task is repeated"
            )
        self._claims.hold(tag for tag, *_ in buffer.messages)

    def _settle_claimed(self, claimed: pa.RecordBatch, *, give_back: bool) -> pa.BooleanArray:
        """Acknowledge or release; return true where that has reached the server."""
        if self._claims is not self._client.claims:
            self._claims.drop_all()
        ours = self._claims.tags_of(claimed)
        wanted = [tag for tag in ours if tag is not None]
        if wanted:
            try:
                self._settle(wanted, give_back=give_back)
            except BrokerError:
                ours = [None] * len(ours)  # the connection ended, and what is claimed went back with it
                self._claims.drop_all()
        return pa.array([tag is not None for tag in ours], pa.bool_())

    def _settle(self, wanted: Sequence[int], *, give_back: bool) -> None:
        """Return when the server has answered, so that it has seen it."""
        upto, single = self._claims.frames(wanted)

        def settle(channel: Channel, done: Done) -> None:
            verb = channel.basic_nack if give_back else channel.basic_ack
            if upto is not None:
                verb(upto, multiple=True)
            for tag in single:
                verb(tag)
            channel.basic_qos(prefetch_count=0, callback=done)

        self._client.call(settle)
        self._claims.drop(wanted)
