"""Publishing with many unconfirmed messages on their way, to queues, exchanges and wait queues."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import pika
import pyarrow as pa
import pyarrow.compute as pc
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic

from babelqueue_spark.bindings.rabbitmq.client import Done, RabbitClient
from babelqueue_spark.bindings.rabbitmq.frames import fit
from babelqueue_spark.bindings.rabbitmq.messages import properties
from babelqueue_spark.bindings.rabbitmq.options import RabbitOptions
from babelqueue_spark.bindings.rabbitmq.queues import Queues
from babelqueue_spark.errors import BrokerError

logger = logging.getLogger(__name__)

LONGEST_DELAY = 40 * 86_400_000
_UNCONFIRMED = 2_000


class Post(NamedTuple):
    """One message and where it goes."""

    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties
    mandatory: bool


class Publisher:
    """Sends messages to queues, which are made where they are missing, or to an exchange."""

    def __init__(self, options: RabbitOptions, client: RabbitClient, queues: Queues) -> None:
        self._client = client
        self._queues = queues
        self._options = options

    def publish(self, queue: str, messages: pa.RecordBatch) -> int:
        """Send `OUTGOING` messages; returns when the server has confirmed each of them."""
        self._check_delays(messages)
        total: int = messages.num_rows
        if not total:
            return 0
        sending = _Sending(self._posts(queue, messages), total)
        self._client.call_aside(sending.start)
        if sending.left_out:
            logger.warning(
                "queue %s: headers were left out that do not fit into a frame of RabbitMQ: %s",
                queue,
                ", ".join(sorted(map(repr, sending.left_out))),
            )
        if sending.refused or sending.returned:
            self._queues.forget()
            raise BrokerError(
                f"RabbitMQ at {self._options.address}: of {total} messages for '{queue}' it refused "
                f"{sending.refused} and could not route {sending.returned}{sending.why}: check that the "
                "queue or the binding of the exchange exists, and the queue's length limits"
            )
        return total

    def _posts(self, queue: str, messages: pa.RecordBatch) -> Iterator[Post]:
        """Yield posts, encoded while others are on their way; their queues are declared before the first."""
        delays = pc.fill_null(messages.column("delay"), 0).to_pylist()
        rounded = [_rounded(delay) for delay in delays]
        routes = {delay: self._route(queue, delay) for delay in sorted(set(rounded))}
        bodies = messages.column("body").to_pylist()
        rows = zip(
            map(routes.__getitem__, rounded),
            bodies,
            delays,
            properties(messages, native=self._options.native),
            strict=True,
        )
        return (self._post(*row) for row in rows)

    def _post(self, route: tuple[str, str], body: bytes, delay: int, given: pika.BasicProperties) -> Post:
        plugin = delay > 0 and bool(self._options.delayed_exchange)
        if plugin:
            given.headers = {**(given.headers or {}), "x-delay": delay}
        # The plugin routes later, and until then calls a mandatory message unroutable.
        return Post(*route, body, given, mandatory=not plugin)

    def _route(self, queue: str, delay: int) -> tuple[str, str]:
        """Exchange and routing key for messages that are due after `delay` milliseconds."""
        options = self._options
        if delay <= 0 and options.exchange:
            return options.exchange, options.routing_key or queue
        self._queues.ensure(queue)
        if delay <= 0:
            return "", queue
        if options.delayed_exchange:
            return options.delayed_exchange, queue
        return "", self._queues.waiting(queue, delay, options.delay_queue_type)

    def _check_delays(self, messages: pa.RecordBatch) -> None:
        options = self._options
        longest = pc.max(messages.column("delay")).as_py() or 0
        if longest > 0 and options.exchange and not options.delayed_exchange:
            raise BrokerError(
                f"RabbitMQ at {options.address}: a message asks for a delay, after which a wait queue would "
                "hand it to its queue, past rabbitmq.exchange: name a rabbitmq.delayed_exchange, or leave "
                "rabbitmq.exchange out"
            )


class _Sending:
    """One batch on its way; its methods run on the connection's thread."""

    def __init__(self, posts: Iterator[Post], total: int) -> None:
        self.refused = 0
        self.returned = 0
        self.why = ""
        self.left_out: set[str] = set()
        self._posts = posts
        self._total = total
        self._sent = 0
        self._unconfirmed: dict[int, None] = {}

    def start(self, channel: Channel, done: Done) -> None:
        """Send, and call `done` when all are confirmed."""
        self._channel, self._done = channel, done
        channel.add_on_return_callback(self._return)
        channel.confirm_delivery(self._confirm, callback=lambda _: self._send())

    def _send(self) -> None:
        while len(self._unconfirmed) < _UNCONFIRMED and self._sent < self._total:
            post = next(self._posts)
            self.left_out |= fit(post.properties, self._channel.connection.params.frame_max)
            self._channel.basic_publish(*post)
            self._sent += 1
            self._unconfirmed[self._sent] = None

    def _confirm(self, frame: Method[Basic.Ack | Basic.Nack]) -> None:
        confirmed = self._confirmed(frame.method.delivery_tag, frame.method.multiple)
        if isinstance(frame.method, Basic.Nack):
            self.refused += len(confirmed)
        for tag in confirmed:
            del self._unconfirmed[tag]
        if self._sent < self._total:
            self._send()
        elif not self._unconfirmed:
            self._done()

    def _confirmed(self, tag: int, multiple: bool) -> list[int]:
        return list(takewhile(lambda sent: sent <= tag, self._unconfirmed)) if multiple else [tag]

    def _return(self, _: Channel, method: Basic.Return, *__: object) -> None:
        self.returned += 1
        self.why = f" ({method.reply_code} {method.reply_text})"


def _rounded(delay: int) -> int:
    """Up to three significant digits, so that wait queues stay few: at most 1 % late."""
    step = int(10 ** max(0, len(str(delay)) - 3))
    return -(-max(delay, 0) // step) * step
