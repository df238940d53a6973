"""Artemis: queue to DataFrame and back, against bare loops of the client's containers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from proton.handlers import MessagingHandler
from proton.reactor import Container

from babelqueue_spark.bindings.artemis.messages import encoded
from babelqueue_spark.bindings.artemis.options import ArtemisOptions
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.connector.options import write_options
from bench.redis import body, session
from bench.table import Row, new_queue, rate, read_rate, row
from tests.bindings.artemis_peers import Queue, amqp_url
from tests.servers.artemis import ArtemisServer
from tests.streams import outgoing

MESSAGES = 40_000
PER_TRIGGER = 20_000
CREDIT = 1_000


def rows() -> list[Row]:
    """Both directions; the broker's first pass is the compiler's."""
    with ArtemisServer() as server, tempfile.TemporaryDirectory() as folder:
        spark = session()
        for count in (PER_TRIGGER, MESSAGES):
            bodies = [body(number) for number in range(count)]
            ours = rate(count, lambda: publish(server, new_queue(), bodies), repeats=1)  # noqa: B023
            theirs = rate(count, bare_send(server, new_queue(), bodies), repeats=1)
            queue = new_queue()
            publish(server, queue, bodies)
            loop = rate(count, lambda: bare_receive(server, queue, count), repeats=1)  # noqa: B023
            read_in = {
                partitions: read(spark, server, bodies, Path(folder), partitions) for partitions in (1, 2)
            }
        spark.stop()
    peer = "bare receive and accept"
    return [
        row("Artemis to DataFrame, one partition", read_in[1], peer, loop, 0.8),
        row("Artemis to DataFrame, two partitions", read_in[2], peer, loop, None),
        row("Artemis publish", ours, "bare send, encoded before", theirs, 0.7),
    ]


def read(spark: Any, server: ArtemisServer, bodies: list[bytes], folder: Path, partitions: int) -> float:
    """Messages a second of the batches after the first."""
    queue = new_queue()
    publish(server, queue, bodies)
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "numPartitions": partitions}
    return read_rate(spark, server.url, queue, len(bodies), folder / queue, **options)


def publish(server: ArtemisServer, queue: str, bodies: list[bytes]) -> None:
    """By the binding, with the properties of the contract, confirmed."""
    with write_options({"url": server.url}).binding() as binding:
        size = binding.capabilities.publish_batch
        for first in range(0, len(bodies), size):
            binding.publish(queue, outgoing(bodies[first : first + size]))


def bare_send(server: ArtemisServer, queue: str, bodies: list[bytes]) -> Any:
    """Sends the same messages, encoded before, and waits until all are accepted."""
    options = ArtemisOptions.parse(BindingConfig(url=server.url))
    sender = _Sender(server, queue, list(encoded(outgoing(bodies), options)))
    return lambda: Container(sender).run()


def bare_receive(server: ArtemisServer, queue: str, count: int) -> None:
    """Receives with a credit of 1000, looks at each message and accepts it."""
    Container(_Receiver(server, queue, count)).run()


class _Sender(MessagingHandler):
    def __init__(self, server: ArtemisServer, queue: str, messages: list[bytes]) -> None:
        super().__init__()
        self._url, self._queue, self._messages = amqp_url(server), queue, messages
        self._sent = self._accepted = 0

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self._url)
        event.container.create_sender(connection, self._queue, options=Queue())

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._sent < len(self._messages):
            event.sender.delivery(str(self._sent))
            event.sender.stream(self._messages[self._sent])
            event.sender.advance()
            self._sent += 1

    def on_accepted(self, event: Any) -> None:
        self._accepted += 1
        if self._accepted == len(self._messages):
            event.connection.close()


class _Receiver(MessagingHandler):
    def __init__(self, server: ArtemisServer, queue: str, count: int) -> None:
        super().__init__(prefetch=CREDIT)
        self._url, self._queue, self._left = amqp_url(server), queue, count

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self._url)
        event.container.create_receiver(connection, self._queue, options=Queue())

    def on_message(self, event: Any) -> None:
        assert event.message.body
        self._left -= 1
        if not self._left:
            event.connection.close()
