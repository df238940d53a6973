"""Queues that drop a message whose id they have seen: what is written again must get through."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.worker import Policy, Worker, redrive
from tests.servers.servicebus import ServiceBusServer
from tests.streams import publish
from tests.worker.queues import order, taken, work_off
from tests.worker.test_redrive import dead

pytestmark = pytest.mark.spark

WINDOW = 3600


@pytest.fixture
def options(servicebus_server: ServiceBusServer, queue: str) -> dict[str, str]:
    """Of a writer that knows how long the queue remembers ids."""
    servicebus_server.create(queue, duplicate_seconds=WINDOW)
    return {"url": servicebus_server.url, "servicebus.duplicate_window": str(WINDOW)}


def test_a_release_is_an_attempt(spark: Any, options: dict[str, str], queue: str, tmp_path: Path) -> None:
    body = order(queue, urn="urn:babel:nobody:knows")
    publish(options["url"], queue, [body])
    worker = Worker(
        options, state=str(tmp_path / "worker"), policy=Policy(unknown_urn="release", backoff=[1])
    )
    work_off(spark, worker, options["url"], queue, tmp_path)
    [again] = taken(options["url"], queue, 1)
    assert json.loads(again) == {**json.loads(body), "attempts": 1}


def test_fresh_dead_letters_stay(spark: Any, options: dict[str, str], queue: str) -> None:
    fresh, old = order(queue, n=1), order(queue, n=2)
    letters = [dead(fresh, queue, failed_at=int(time.time() * 1000)), dead(old, queue)]
    publish(options["url"], queue, [fresh])
    publish(options["url"], f"{queue}.dlq", letters)
    moved = redrive(spark, options, f"{queue}.dlq")
    assert (len(moved.moves), moved.kept) == (1, {"too fresh": 1})
    assert taken(options["url"], queue, 2) == [fresh, old]
    assert taken(options["url"], f"{queue}.dlq", 1) == letters[:1]
