"""What `make test` runs of the tests with servers and Spark: the product proved small.

All others are `wide`: other configurations of a promise that one of these proves. `.ci/run` runs them too.
"""

from __future__ import annotations

import re

import pytest

_CONTRACT = (
    "acknowledge_says|bodies_come_back|browsing_consumes|claim_of_a_killed|claimed_message_is|dead_letters_go|"
    "delayed_message_comes|hostile|headers_travel|key_travels|lapsed_claim|marked_batch_is|offsets_name|"
    "receipt_outlives|release_gives|silent_from_the_start|unreachable_broker|what_is_read_has"
)
"""Promises of a binding that no test of another kind implies."""

_NARROW = re.compile(
    "|".join(
        [
            # Every promise of a binding on two brokers, the essential ones on each.
            r"contract/test_(sql|redis)\.py::Test(Sqlite|Redis)::",
            rf"contract/.*::Test(Postgres|MariaDb|Rabbit|Sqs|ServiceBus|Pulsar|Artemis|Kafka|Kinesis|Firehose)::.*({_CONTRACT})",
            # What the published SDK writes and reads.
            r"bindings/test_\w+_conformance\.py",
            r"test_sdk\.py",
            # Reads, writes, browse and the worker, through Spark.
            r"source/test_(stream|browse)\.py::.*(\[(sqlite|redis)|::test_\w+$)",
            r"sink/test_(write|types)\.py::.*(\[(sqlite|redis)|::test_\w+$)",
            r"worker/test_outcomes\.py::.*sqlite",
            # SIGKILL at every point: a query on one broker, and readers without Spark on another.
            r"crash/test_kill\.py::TestSqlite::",
            r"crash/test_kill\.py::TestRedis::test_killed_worker",
            r"worker/test_kill\.py::TestSqlite::",
            r"test_notebooks\.py",
        ]
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `wide` what needs a server or Spark and is not in the small tier."""
    for item in items:
        costly = any(item.get_closest_marker(mark) for mark in ("spark", "server", "slow"))
        if costly and not _NARROW.search(item.nodeid):
            item.add_marker("wide")
