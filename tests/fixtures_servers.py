"""One server of each kind for the whole test run, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import RedisServer
from tests.servers.rabbitmq import RabbitServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitServer]:
    with RabbitServer() as server:
        yield server
