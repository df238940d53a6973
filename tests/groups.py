"""Which worker of a parallel run a test goes to, in which order, and which tests need a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.brokers import SERVERS

SHARED = {
    "pulsar_server": "pulsar",
    "kafka_server": "kafka",
    "artemis_server": "artemis",
    "elasticmq_server": "sqs",
    "rabbitmq_server": "rabbitmq",
    "mariadb_server": "mariadb",
    "postgresql_server": "postgresql",
    "servicebus_server": "servicebus",
    "hasty_servicebus_server": "servicebus",
    "redis_server": None,
}
"""Fixture of a server → the group of its tests, slowest to start first.

A group runs in one process, so its server starts once. Redis starts in a moment, so its tests go anywhere.
"""

_SECONDS = {"slow": 20, "spark": 3, "server": 1}
"""By mark, what a test takes, roughly."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        servers = servers_of(item)
        if servers:
            item.add_marker("server")
        if "spark" in fixtures_of(item):
            item.add_marker("spark")
        groups[_group(item, servers)].append(item)
    for name, members in groups.items():
        for item in members:
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(name))
        members.sort(key=lambda item: item.get_closest_marker("restarts") is not None)
    longest_first = sorted(groups.values(), key=_seconds, reverse=True)
    items[:] = [item for members in longest_first for item in members]


def fixtures_of(item: pytest.Item) -> set[str]:
    """The fixtures that a test names, and those that these name."""
    return set(getattr(item, "fixturenames", ()))


def servers_of(item: pytest.Item) -> set[str]:
    """The fixtures of shared servers that a test uses, also where it asks for one by the name of a broker."""
    fixtures = fixtures_of(item)
    found = fixtures & SHARED.keys()
    if "request" in fixtures:
        callspec = getattr(item, "callspec", None)
        values = list(callspec.params.values()) if callspec else []
        brokers = [*values, getattr(getattr(item, "cls", None), "broker", None)]
        found |= {SERVERS[broker] for broker in brokers if isinstance(broker, str) and broker in SERVERS}
    return found


def _group(item: pytest.Item, servers: set[str]) -> str:
    given = item.get_closest_marker("xdist_group")
    if given is not None:
        return str(given.args[0])
    named = [group for fixture, group in SHARED.items() if group and fixture in servers]
    return named[0] if named else item.parent.nodeid if item.parent else ""


def _seconds(members: Iterable[pytest.Item]) -> int:
    return sum(
        max([seconds for mark, seconds in _SECONDS.items() if item.get_closest_marker(mark)], default=0)
        for item in members
    )
