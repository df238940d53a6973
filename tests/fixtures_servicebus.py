"""Stand-ins for Service Bus for the whole test run, started when a test first asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.servicebus import ServiceBusServer


@pytest.fixture(scope="session")
def servicebus_server() -> Iterator[ServiceBusServer]:
    with ServiceBusServer() as server:
        yield server


@pytest.fixture(scope="session")
def hasty_servicebus_server() -> Iterator[ServiceBusServer]:
    """Locks lapse soon here, as if all queues had been created so."""
    with ServiceBusServer(lock_seconds=5.0) as server:
        yield server
