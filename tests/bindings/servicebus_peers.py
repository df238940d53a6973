"""What the Service Bus tests share: bindings, a bare client and the published SDK beside us."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from babelqueue.asb_transport import AsbTransport

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.servicebus import ServiceBusBinding
from tests.servers.servicebus import ServiceBusServer

NO_LIMIT = 1 << 40


def binding(server: ServiceBusServer, **options: str) -> ServiceBusBinding:
    """A binding to a test server."""
    return ServiceBusBinding(BindingConfig(url=server.url, client_options=options))


@contextmanager
def client(server: ServiceBusServer) -> Iterator[ServiceBusClient]:
    """A bare client, without the threads that close with it late."""
    with ServiceBusClient.from_connection_string(server.url, retry_total=0) as made:
        yield made


def sdk(bare: ServiceBusClient) -> AsbTransport:
    """The published SDK's transport."""
    return AsbTransport(client=bare)


def receiver(bare: ServiceBusClient, queue: str, **options: Any) -> Any:
    """A receiver without a thread of its own."""
    return bare.get_queue_receiver(queue, prefetch_count=1, keep_alive=0, **options)


def receive(opened: Any, count: int) -> list[ServiceBusReceivedMessage]:
    """Receive so many messages, fewer where no more come: one call of the client ends at a gap of 0.2 s."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count and (more := opened.receive_messages(count - len(found), 60)):
        found += more
    return found


def sender(bare: ServiceBusClient, queue: str) -> Any:
    """A sender without a thread of its own."""
    return bare.get_queue_sender(queue, keep_alive=0)


def send_gated(server: ServiceBusServer, queue: str, messages: Iterable[bytes], attempts: str | None) -> None:
    """Send with a property that names another schema version, from a bare client."""
    given = {"bq-schema-version": 2, "bq-attempts": None if attempts is None else int(attempts)}
    named = {name: value for name, value in given.items() if value is not None}
    with client(server) as bare, sender(bare, queue) as out:
        out.send_messages([ServiceBusMessage(body, application_properties=named) for body in messages])


def content(message: ServiceBusReceivedMessage) -> bytes:
    return b"".join(message.body)


def bodies(batch: pa.RecordBatch) -> list[bytes]:
    values: list[bytes] = batch.column("body").to_pylist()
    return values
