"""Which worker of a parallel run a test goes to, in which order, and which tests need a server."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.brokers import SERVERS

_BROKERS = re.compile("|".join([*(broker for broker in SERVERS if broker != "redis"), "firehose"]))
"""Those whose server is slow to start: all tests of one go to one process, where it starts once."""

_FIXTURES = {*SERVERS.values(), "redis_cluster", "redis_sentinels", "servicebus_server"}

_SECONDS = {"slow": 20, "spark": 3, "server": 1}
"""By mark, what a test takes, roughly."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if servers_of(item):
            item.add_marker("server")
        if "spark" in fixtures_of(item):
            item.add_marker("spark")
        groups[group_of(item.nodeid)].append(item)
    for members in groups.values():
        members.sort(key=lambda item: item.get_closest_marker("restarts") is not None)
    longest_first = sorted(groups.values(), key=_seconds, reverse=True)
    items[:] = [item for members in longest_first for item in members]


def fixtures_of(item: pytest.Item) -> set[str]:
    """The fixtures that a test names, and those that these name."""
    return set(getattr(item, "fixturenames", ()))


def servers_of(item: pytest.Item) -> set[str]:
    """The fixtures of shared servers that a test uses, also where it asks for one by the name of a broker."""
    fixtures = fixtures_of(item)
    found = fixtures & _FIXTURES
    if "request" in fixtures:
        callspec = getattr(item, "callspec", None)
        values = list(callspec.params.values()) if callspec else []
        brokers = [*values, getattr(getattr(item, "cls", None), "broker", None)]
        found |= {SERVERS[broker] for broker in brokers if isinstance(broker, str) and broker in SERVERS}
    return found


def group_of(nodeid: str) -> str:
    """The broker that a test's id names; else its class or module. Kills, which start many processes, are one group."""
    scope = nodeid.partition("[")[0].rpartition("::")[0]
    if "test_kill.py" in scope:
        return "kills"
    named = _BROKERS.search(nodeid.lower().replace(" ", ""))
    return named[0] if named else scope


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Give each group to one process, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


def _seconds(members: Iterable[pytest.Item]) -> int:
    return sum(
        max([seconds for mark, seconds in _SECONDS.items() if item.get_closest_marker(mark)], default=0)
        for item in members
    )
