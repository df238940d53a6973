"""The recipes of docs/lakehouse.md: each message is in its table once, also when Spark repeats a batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import url_of
from tests.lakehouse import page, tables
from tests.streams import envelope, left, publish

MAILS = "urn:babel:mails:sent"
INVALID = [b"bad", b'{"job":"urn:babel:orders:created","data":[]}']
pytestmark = pytest.mark.spark


@pytest.fixture
def folder(tmp_path: Path, spark: Any) -> Path:
    """Where the page's `/mnt` is: Iceberg's catalog is that of the session."""
    return Path(spark.conf.get("spark.sql.catalog.lake.warehouse")).parent.parent


def bodies(first: int) -> list[bytes]:
    return [
        *(envelope(number) for number in range(first, first + 50)),
        envelope(first, job=MAILS),
        *(body + b" " * first for body in INVALID),
    ]


def run(recipe: str, spark: Any, url: str, queue: str, folder: Path) -> None:
    query = page.start(recipe, spark, url, [queue], folder, journalRetention="1h")
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.parametrize("recipe", page.RECIPES)
def test_each_message_and_each_transaction_once(
    recipe: str, spark: Any, queue: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = url_of("sqlite", request, tmp_path)
    sent = [*bodies(0), *bodies(100)]
    publish(url, queue, sent[: len(sent) // 2])
    run(recipe, spark, url, queue, folder)
    tables.forget_last_commit(folder / "streams" / recipe / "checkpoint")
    publish(url, queue, sent[len(sent) // 2 :])
    run(recipe, spark, url, queue, folder)
    assert tables.bodies(spark, recipe, folder) == Counter(sent)
    for transactions in tables.transactions(spark, recipe, folder):
        assert set(transactions.values()) <= {1}
        assert len(transactions) == (0 if recipe == "merged" else 2)
    assert left(url, queue) == 0
    if recipe == "tables":
        assert [tables.jobs(spark, table, folder) for table in tables.DELTA[recipe]] == [
            {"urn:babel:orders:created": 100},
            {MAILS: 2},
            {None: 4},
        ]
    if recipe == "merged":
        publish(url, queue, [sent[0], *sent[:3]])
        run(recipe, spark, url, queue, folder)
        assert tables.bodies(spark, recipe, folder) == Counter(sent)
