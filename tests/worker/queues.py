"""Short words for what the tests of the worker do again and again."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.testing import eventually
from tests.streams import run, stream

SECONDS = 30


def order(queue: str, /, *, urn: str = "urn:babel:orders:created", **data: Any) -> bytes:
    """An envelope as the published SDK writes it."""
    return str(EnvelopeCodec.encode(EnvelopeCodec.make(urn, data, queue=queue))).encode()


def work_off(spark: Any, worker: Any, url: str, queue: str, folder: Path, **options: Any) -> None:
    """Hand what is in the queue now to a worker."""
    run(stream(spark, url, queue, folder, **options), folder, worker)


def taken(url: str, queue: str, count: int) -> list[bytes]:
    """The bodies of `count` messages, waiting for those that are delayed; they leave the queue."""
    found: list[bytes] = []
    moment, deadline = threading.Event(), time.monotonic() + SECONDS
    with read_options({"url": url, "queue": queue}).binding() as binding:
        while len(found) < count and time.monotonic() < deadline:
            batch = binding.claim(queue, count - len(found), 1 << 30)
            found += batch.column("body").to_pylist()
            if batch.num_rows:
                binding.acknowledge(queue, batch)
            else:
                moment.wait(0.02)
        assert len(found) == count, f"{len(found)} of {count} messages came to {queue}"
        eventually(lambda: binding.backlog(queue) == 0)
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of a message log."""
    texts = (path.read_text() for path in sorted(folder.glob("*.jsonl")))
    return [json.loads(line) for text in texts for line in text.splitlines()]
