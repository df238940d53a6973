"""Fixtures for tests of your own pipelines: `pytest_plugins = ["babelqueue_spark.testing.fixtures"]`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.connector.options import read_options


class LocalBroker:
    """Queues in a SQLite file, which Spark's Python workers see as well: they are processes of their own.

    Attributes:
        url: the connection string.
        folder: where the file and the journals of streams lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/queues.db"

    def options(self, queue: str) -> dict[str, str]:
        """Return the options of a streaming read; other reads leave out `journalLocation`."""
        return {"url": self.url, "queue": queue, "journalLocation": str(self.folder / f"journal-{queue}")}

    def publish(self, queue: str, job: str, *data: Mapping[str, Any]) -> None:
        """Append an envelope with this URN for each of `data`."""
        self.publish_bodies(queue, *(_envelope(queue, job, each) for each in data))

    def publish_bodies(self, queue: str, *bodies: bytes) -> None:
        """Append messages as they are, also invalid ones."""
        with self._binding(queue) as binding:
            binding.publish(queue, outgoing(len(bodies), body=bodies))

    def messages(self, queue: str) -> list[Any]:
        """Return the envelopes that wait in a queue, in order; bytes where a body is no JSON. They stay."""
        with self._binding(queue) as binding:
            return [_read(body) for batch in binding.browse(queue) for body in batch["body"].to_pylist()]

    def _binding(self, queue: str) -> BaseBinding:
        return read_options({"url": self.url, "queue": queue}).binding()


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _envelope(queue: str, job: str, data: Mapping[str, Any]) -> bytes:
    meta = {"id": str(uuid.uuid4()), "queue": queue, "lang": "python", "schema_version": 1}
    meta["created_at"] = time.time_ns() // 1_000_000
    envelope = {"job": job, "trace_id": str(uuid.uuid4()), "data": data, "meta": meta, "attempts": 0}
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.fixture
def local_broker(tmp_path: Path) -> LocalBroker:
    """Queues of this test alone, which end with its folder."""
    return LocalBroker(tmp_path)
