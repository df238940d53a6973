"""Tracing is off unless it is asked for."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.worker import Message, Outgoing, Worker
from tests.streams import envelope, publish


def test_without_tracing_nothing_is_imported_and_nothing_is_said(
    spark: Any, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spark.sparkContext.environment, "FRESH_WORKERS", uuid.uuid4().hex)
    url = f"sqlite:///{tmp_path}/queue.db"  # the client of Redis imports OpenTelemetry by itself
    publish(url, queue, [envelope(1, queue)])
    worker = Worker({"url": url}, state=str(tmp_path / "worker"))

    @worker.handler("*")
    def imported(message: Message) -> Outgoing:
        found = sorted(name for name in sys.modules if name.partition(".")[0] == "opentelemetry")
        return Outgoing(job="urn:x", data={"imported": found}, queue=f"{queue}-out")

    worker.run(spark.read.format("babelqueue").options(url=url, queue=queue).load())
    [row] = spark.read.format("babelqueue").options(url=url, queue=f"{queue}-out").load().collect()
    assert (row.data, row.headers) == ('{"imported":[]}', None)


def test_without_tracing_the_driver_imports_nothing() -> None:
    program = (
        "import sys, babelqueue_spark.datasource, babelqueue_spark.connector.sink.writer, babelqueue_spark.worker as w\n"
        "w.Worker({'url': 'sqlite:////srv/q.db'}, state='/nowhere')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
