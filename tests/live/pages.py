"""A live page that runs, and what its tests put into queues."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from babelqueue_spark.jobs.page.live import Live
from tests.streams import publish
from tests.worker.queues import order
from tests.worker.test_redrive import dead


@contextmanager
def running(url: str, *queues: str, every: float = 0.2, **settings: Any) -> Iterator[Live]:
    """The page of some queues, which it polls often."""
    options = {"url": url, "queue": ",".join(queues), **settings.pop("options", {})}
    with Live(options, address=url, every=every, **settings) as page:
        thread = threading.Thread(target=page.run)
        thread.start()
        try:
            yield page
        finally:
            page.stop()
            thread.join()


def put_dead_letters(url: str, queue: str, *reasons: str) -> list[bytes]:
    """Publish a dead letter for each reason, with numbers from 7000 on; returns their bodies."""
    letters = [
        dead(order(queue, card=7000 + number), queue, reason=reason) for number, reason in enumerate(reasons)
    ]
    publish(url, f"{queue}.dlq", letters)
    return letters


class Exporter:
    """What a query exports, on a port of its own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()

        def made(kind: type, name: str, *labels: str) -> Any:
            return kind(f"babelqueue_{name}", "of a query", ["query", *labels], registry=registry)

        self.seconds = made(Histogram, "batch_duration_seconds")
        self.phases = made(Counter, "batch_phase_seconds", "phase")
        self.messages = made(Counter, "messages")
        self.last_batch = made(Gauge, "last_batch_timestamp_seconds")
        self.active = made(Gauge, "query_active")
        self.server, self._thread = start_http_server(0, "127.0.0.1", registry)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"

    def batch(self, seconds: float, messages: int, **phases: float) -> None:
        self.seconds.labels("orders").observe(seconds)
        for phase, took in phases.items():
            self.phases.labels("orders", phase).inc(took)
        self.messages.labels("orders").inc(messages)
        self.last_batch.labels("orders").set_to_current_time()
        self.active.labels("orders").set(1)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
