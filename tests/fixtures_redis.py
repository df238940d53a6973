"""A Redis server for the whole test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server
