"""A bare client of Artemis and the published SDK, for tests beside the binding's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from babelqueue.artemis_transport import ArtemisTransport
from proton import Delivery, Message, symbol
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from babelqueue_spark.bindings import BindingConfig
from tests.servers.artemis import ArtemisServer


class Queue(LinkOption):
    """Asks for an anycast queue, where the broker would make the address multicast."""

    def apply(self, link: Any) -> None:
        terminus = link.source if link.is_receiver else link.target
        terminus.capabilities.put_object(symbol("queue"))


def amqp_url(server: ArtemisServer | BindingConfig) -> str:
    """As a bare client wants it."""
    return server.url.replace("artemis://", "amqp://")


@contextmanager
def bare_client(server: ArtemisServer | BindingConfig) -> Iterator[BlockingConnection]:
    """A connection."""
    connection = BlockingConnection(amqp_url(server), timeout=20)
    try:
        yield connection
    finally:
        connection.close()


def send(server: ArtemisServer | BindingConfig, queue: str, messages: Iterable[Message]) -> None:
    """Send from a bare client."""
    with bare_client(server) as connection:
        sender = connection.create_sender(queue, options=Queue())
        for message in messages:
            sender.send(message)


def receive(
    server: ArtemisServer, queue: str, state: int = Delivery.ACCEPTED, *, failed: bool = False
) -> Message:
    """One message as a bare client gets it, and settles it: accepted, released, or modified as `failed`."""
    with bare_client(server) as connection:
        receiver = connection.create_receiver(queue, credit=1, options=Queue())
        message: Message = receiver.receive()
        [delivery] = receiver.fetcher.unsettled
        delivery.local.failed = failed
        receiver.settle(state)
        receiver.close()
    return message


def send_gated(server: ArtemisServer, queue: str, messages: Iterable[bytes], attempts: str | None) -> None:
    """Send with a property that names another schema version, from a bare client."""
    given = {"bq_schema_version": "2", "bq_attempts": attempts}
    named = {name: value for name, value in given.items() if value is not None}
    send(server, queue, (Message(body.decode(), properties=named) for body in messages))


@contextmanager
def sdk(server: ArtemisServer) -> Iterator[ArtemisTransport]:
    """The published SDK's transport."""
    transport = ArtemisTransport(server.url)
    try:
        yield transport
    finally:
        transport.close()
