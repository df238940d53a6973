"""What the tests of the bindings share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.bindings.redis_peers import Clock
from tests.servers import RedisServer


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    with Redis(port=redis_server.port) as client:
        yield client


@pytest.fixture
def clock(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(redis, monkeypatch)
