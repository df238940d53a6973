"""The binding of ActiveMQ Artemis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from proton import Delivery

from babelqueue_spark.bindings.artemis.client import ArtemisClient, advice_on
from babelqueue_spark.bindings.artemis.connection import SIGN_SECONDS, Connection, QueueLink
from babelqueue_spark.bindings.artemis.messages import Found, encoded, numbers, received
from babelqueue_spark.bindings.artemis.options import ArtemisOptions
from babelqueue_spark.bindings.artemis.wire import AmqpError
from babelqueue_spark.bindings.batches import counted_attempts, deliveries, fitting, names_by_content
from babelqueue_spark.bindings.contract import Binding, BindingConfig, Capabilities
from babelqueue_spark.errors import BrokerError

_FIRST_WINDOW = 100
_LARGEST_WINDOW = 10_000
_LARGEST_WINDOW_BYTES = 32 << 20
_LOOK = 1_000
"""So many messages at most are looked at to tell how many there are."""
_MANY = 1_000_000
"""The backlog when there are more than that and nobody tells how many."""
_BROWSE_MESSAGES = 200

_OWN = ("activemq.", "$")


class ArtemisBinding(Binding):
    """Artemis, by one connection, with a link for each queue of which something is claimed."""

    name = "artemis"
    event_prefix = "cloudEvents_"
    title = "Artemis"
    capabilities = Capabilities(
        claim_batch=20_000,
        publish_batch=20_000,
        connection_claims=True,
        max_delay=None,
        browse="exact",
        ordered=True,
        keys=True,
        headers=True,
        native_dead_letters=True,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self._options = ArtemisOptions.parse(config)
        if self._options.duplicate_detection:
            self.capabilities = replace(self.capabilities, duplicate_detection=True)
        self.silence_limit = self._options.timeout + SIGN_SECONDS
        self._client = ArtemisClient(self._options)
        self._links: dict[str, QueueLink] = {}
        self._average = 0.0

    def backlog(self, queue: str) -> int:
        """Ask the broker's management; where it may not be asked, up to a thousand by a browse."""
        ready = self._client.ready(queue)
        if ready is not None:
            return ready
        seen = sum(map(len, self._browsed(queue, _LOOK + 1)))
        return seen if seen <= _LOOK else _MANY

    def check_target(self, queue: str) -> None:
        """Refuse addresses of the broker's own: it takes what comes there for orders."""
        super().check_target(queue)
        if queue.startswith(_OWN):
            raise self.refused_name(queue, "this address is the broker's own")

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim by a link that stays until its claims are settled; what comes beyond the bytes goes back."""
        with self._client.connected(queue) as connection:
            link = self._link(queue, connection)
            try:
                taken = self._take(connection, link, messages, max_bytes)
            except BaseException:
                with suppress(AmqpError, OSError):
                    connection.leave(self._links.pop(queue))
                raise
            self._leave_if_settled(queue, connection)
        return received(taken, link.name, native=self.config.native) if taken else deliveries(0)

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Return true where the link of the claim is still open, and the broker knows."""
        return self._settle(queue, deliveries, Delivery.ACCEPTED)

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """To their former places, uncounted."""
        self._settle(queue, deliveries, Delivery.RELEASED)

    def duplicate_window(self, queue: str) -> float:
        """Without end: a broker remembers ids by their number, and writes them down."""
        del queue
        return math.inf if self._options.duplicate_detection else 0.0

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Durable, with many unconfirmed messages on their way."""
        del idempotency_key
        total: int = messages.num_rows
        if not total:
            return 0
        with self._client.connected(queue) as connection:
            sender = connection.sender(queue)
            try:
                refused = connection.send(sender, encoded(messages, self._options, native=self.config.native))
            finally:
                connection.detach(sender)
        if refused:
            reasons = "; ".join(Counter(advice_on(each).text for each in refused))
            raise self._client.error(f"of {total} messages {len(refused)} were not taken: {reasons}", queue)
        return total

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Browse by a link that copies; without what any reader has claimed."""
        for found in self._browsed(queue):
            yield received(found, None, native=self.config.native)

    def close(self) -> None:
        self._client.close()
        self._links.clear()

    def identities(self, deliveries: pa.RecordBatch) -> list[str]:
        """Digests of message id and body: Artemis tells no name of its own."""
        return names_by_content(deliveries)

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """Return the larger of the body's count and of the failed deliveries that the broker counts."""
        return counted_attempts(body_attempts, pc.fill_null(deliveries.column("count"), 1))

    def _link(self, queue: str, connection: Connection) -> QueueLink:
        """Return the link from a queue. Claims of a link that ended may come again by the next."""
        link = self._links.get(queue)
        if link is None or not link.alive:
            self._links.pop(queue, None)
            if link is not None and link.held:
                raise self._client.error(
                    "the connection was lost while messages were claimed: they are back in the queue, and "
                    "read when the task is repeated",
                    queue,
                )
            link = self._links[queue] = connection.link(queue)
        return link

    def _take(self, connection: Connection, link: QueueLink, messages: int, max_bytes: int) -> list[Found]:
        taken: list[Found] = []
        size = 0
        while len(taken) < messages and (size < max_bytes or not taken):
            window = self._window(messages - len(taken), max_bytes - size)
            arrived = connection.fetch(link, window)
            sizes = [len(raw) for _, raw in arrived]
            kept = fitting(sizes, max_bytes - size, least=0 if taken else 1)
            size += sum(sizes[:kept])
            taken += arrived[:kept]
            if surplus := [number for number, _ in arrived[kept:]]:
                connection.settle(link, surplus, Delivery.RELEASED)
            if not arrived or surplus:
                break
            self._average = size / len(taken)
        return taken

    def _window(self, messages: int, max_bytes: int) -> int:
        """Return how many messages may come before we look at their sizes again."""
        if not self._average:
            return min(messages, _FIRST_WINDOW)
        expected = int(min(max_bytes, _LARGEST_WINDOW_BYTES) / max(self._average, 1.0))
        return max(1, min(messages, expected, _LARGEST_WINDOW))

    def _settle(self, queue: str, deliveries: pa.RecordBatch, state: int) -> pa.BooleanArray:
        """Settle claims; true where they were ours until then, and the broker knows."""
        link = self._links.get(queue)
        none = pa.array([False] * len(deliveries), pa.bool_())
        if link is None:
            return none
        try:
            with self._client.connected(queue) as connection:
                named = numbers(deliveries, link.name)
                ours = [number if number in link.held else None for number in named]
                if link.alive:
                    connection.settle(link, [number for number in ours if number is not None], state)
                if not link.alive:  # perhaps since before the broker heard of it
                    self._links.pop(queue)
                    return none
                self._leave_if_settled(queue, connection)
        except BrokerError:
            self._links.pop(queue, None)
            return none
        return pa.array([number is not None for number in ours], pa.bool_())

    def _leave_if_settled(self, queue: str, connection: Connection) -> None:
        """Close a link on which nothing is held: it would keep its message groups to itself."""
        if not self._links[queue].held:
            connection.leave(self._links.pop(queue))

    def _browsed(self, queue: str, most: int | None = None) -> Iterator[list[Found]]:
        """Messages that are ready, so many at a time as a browse shows."""
        with self._client.connected(queue) as connection:
            link = connection.link(queue, browse=True)
        seen, empty = 0, 0
        try:
            while empty < 2 and (most is None or seen < most):  # the broker may stop before it has sent all
                with self._client.connected(queue) as connection:
                    found = connection.read(link, _BROWSE_MESSAGES)
                empty = 0 if found else empty + 1
                seen += len(found)
                if found:
                    yield found
        finally:
            if link.alive:
                with self._client.connected(queue) as connection:
                    connection.leave(link)
