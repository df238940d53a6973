"""One ElasticMQ for the whole test run, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.elasticmq import ElasticMqServer


@pytest.fixture(scope="session")
def elasticmq_server() -> Iterator[ElasticMqServer]:
    with ElasticMqServer() as server:
        yield server
