"""One Pulsar for the whole test run, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.pulsar import PulsarServer


@pytest.fixture(scope="session")
def pulsar_server() -> Iterator[PulsarServer]:
    with PulsarServer() as server:
        yield server
