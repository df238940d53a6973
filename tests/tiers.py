"""When tests with servers and Spark run: `make test` proves the product small, `.ci/run` more, the night all.

What is in neither list here is `wide`: another configuration of a promise that `make test` proves. `.ci/run` runs it too.
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

_NIGHTLY = re.compile(
    "|".join(
        [
            # A killed driver where `.ci/run` kills workers of the same broker.
            r"crash/test_kill\.py::(?!TestSqlite::).*::test_killed_driver",
            r"worker/test_kill\.py::(?!TestSqlite::).*::test_killed_driver",
            r"worker/test_kill_subscribers\.py::(?!TestRedis::)",
            # The three slowest brokers, whose contract has the claims of a killed process.
            r"crash/test_kill\.py::TestSlow::",
            # Calls in flight, in threads, where `.ci/run` kills async ones.
            r"worker/test_kill\.py::TestRedisBeside::",
            # A kill where `.ci/run` kills at another point, or on another broker.
            r"catalog/test_tables\.py::test_a_killed_driver.*\[(?!between)",
            r"exchange/test_event_store\.py::test_a_killed_driver.*\[before",
            r"exchange/test_kill\.py::test_a_killed_replay.*\[redis",
            r"exchange/test_kill\.py::test_what_was_appended.*\[sqlite",
            r"chaos/test_run\.py",
            # The restart of a broker whose connections the tests of its binding break.
            r"source/test_restart\.py::.*\[(?!Redis|RabbitMQ|Kafka|PostgreSQL)",
            # What does not depend on the broker, on a third one.
            r"worker/test_(idempotency|redrive)\.py::.*\[.*rabbitmq",
            # Metrics over Spark Connect, over which sources and functions are tested.
            r"metrics/test_connect\.py",
            # Tables of Delta Lake and Iceberg, beside one of each.
            r"lakehouse/test_recipes\.py",
            r"lakehouse/test_catalog\.py::.*\[iceberg",
            r"lakehouse/test_drain\.py::.*False",
        ]
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `wide` what needs a server or Spark and is not in the small tier, and as `nightly` what may wait."""
    for item in items:
        if _NIGHTLY.search(item.nodeid):
            item.add_marker("nightly")
        costly = any(item.get_closest_marker(mark) for mark in ("spark", "server", "slow"))
        if costly and not _NARROW.search(item.nodeid):
            item.add_marker("wide")
