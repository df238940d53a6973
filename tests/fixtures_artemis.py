"""One Artemis for the whole test run, started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.artemis import ArtemisServer


@pytest.fixture(scope="session")
def artemis_server() -> Iterator[ArtemisServer]:
    with ArtemisServer() as server:
        yield server
