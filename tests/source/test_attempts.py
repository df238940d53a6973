"""The `attempts` column of brokers that count deliveries: of messages that were delivered before, and of a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.testing import eventually, take
from tests.brokers import url_of
from tests.streams import backlog, drain, envelope, numbers, publish

pytestmark = pytest.mark.spark

MESSAGES = 2

Delivered = Callable[[str, str], AbstractContextManager[None]]


@contextmanager
def lapsed(url: str, queue: str) -> Iterator[None]:
    """Claimed by a reader of which nothing more was heard."""
    with read_options({"url": url, "queue": queue, "visibilityTimeout": "2s"}).queue_binding() as binding:
        take(binding, queue, MESSAGES)
    eventually(lambda: backlog(url, queue) == MESSAGES)
    yield


@contextmanager
def released(url: str, queue: str) -> Iterator[None]:
    """Claimed and given back."""
    with read_options({"url": url, "queue": queue}).queue_binding() as binding:
        binding.release(queue, take(binding, queue, MESSAGES))
    yield


@contextmanager
def refused(url: str, queue: str) -> Iterator[None]:
    """Refused by another application, which stays: without a consumer, Pulsar forgets its counts."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    shared = {"subscription_name": "babelqueue", "consumer_type": pulsar.ConsumerType.Shared}
    client.subscribe(queue, receiver_queue_size=0, **shared)
    reader = client.subscribe(queue, negative_ack_redelivery_delay_ms=100, **shared)
    for message in [reader.receive(timeout_millis=60_000) for _ in range(MESSAGES)]:
        reader.negative_acknowledge(message)
    for _ in range(MESSAGES):
        reader.receive(timeout_millis=60_000)
    reader.close()
    yield
    client.close()


@pytest.mark.parametrize(
    ("broker", "delivered", "first"),
    [("sqs", lapsed, 1), ("servicebus", released, 1), ("pulsar", refused, None)],
)
def test_attempts_are_the_larger_of_the_senders_count_and_the_deliveries_before(
    spark: Any,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    queue: str,
    broker: str,
    delivered: Delivered,
    first: int | None,
) -> None:
    url = url_of(broker, request, tmp_path)
    publish(url, queue, [envelope(1, queue), envelope(2, queue, attempts=5)])
    with delivered(url, queue):
        publish(url, queue, [envelope(3, queue)])
        rows = [row for batch in drain(spark, url, queue, tmp_path) for row in batch]
    found = [(row.attempts, row.delivery["count"]) for row in rows]
    assert sorted(zip(numbers(rows), found, strict=True)) == [(1, (1, 2)), (2, (5, 2)), (3, (0, first))]
