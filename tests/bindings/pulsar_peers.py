"""A bare Pulsar client, for tests beside the binding's own."""

from __future__ import annotations

from collections.abc import Iterable

import pulsar as client

from tests.servers.pulsar import PulsarServer


def send_gated(server: PulsarServer, queue: str, messages: Iterable[bytes], attempts: str | None) -> None:
    """Send with a property that names another schema version, from a bare client."""
    given = {"bq-schema-version": "2", "bq-attempts": attempts}
    named = {name: value for name, value in given.items() if value is not None}
    bare = client.Client(server.url, logger=client.ConsoleLogger(client.LoggerLevel.Error))
    producer = bare.create_producer(queue)
    for body in messages:
        producer.send(body, properties=named)
    bare.close()
