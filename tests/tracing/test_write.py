"""Spans of what is written, by the variables of OpenTelemetry, at a collector."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.connector.options import read_options, write_options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.tracing.contexts import derived
from babelqueue_spark.worker import Worker
from tests.tracing.collector import Collector, collector

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collecting() -> Iterator[Collector]:
    with collector() as server:
        yield server


@pytest.fixture
def tracing(spark: Any, collecting: Collector, tmp_path: Path) -> str:
    """What sets the environment of each process to that collector, and follows it."""
    module = f"tracing_{uuid.uuid4().hex}"
    file = tmp_path / f"{module}.py"
    file.write_text(
        "import os\n"
        "from babelqueue_spark.tracing.provider import from_environment\n"
        "def provider():\n"
        f"    os.environ.update({collecting.variables})\n"
        "    return from_environment()\n"
    )
    spark.sparkContext.addPyFile(str(file))
    return f"{module}:provider"


def context_of(span: Any) -> str:
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


def parent_of(span: Any) -> str:
    return f"00-{span.trace_id.hex()}-{span.parent_span_id.hex()}-01"


def test_a_write_sends_each_message_in_a_span_and_a_repeat_in_the_same(
    spark: Any, redis_server: Any, queue: str, collecting: Collector, tracing: str
) -> None:
    options = {"url": redis_server.url, "queue": queue, "txnAppId": queue, "txnVersion": "1"}
    frame = spark.sql(
        f"SELECT 'urn:a' AS job, '{{}}' AS data, 'trace-1' AS trace_id, map('x', 'y') AS headers"
        f" UNION ALL SELECT 'urn:a', '{{}}', 'trace-2', map('traceparent', '{GIVEN}')"
    ).coalesce(1)
    for _ in range(2):
        writer = frame.write.format("babelqueue").options(**options, tracing=tracing)
        writer.mode("append").save()
    rows = spark.read.format("babelqueue").options(url=redis_server.url, queue=queue).load().collect()
    first, repeated = collecting.spans
    assert [row.headers for row in rows] == [
        {"x": "y", "traceparent": context_of(first)},
        {"traceparent": GIVEN},
    ]
    assert context_of(first) == context_of(repeated)
    assert (first.name, parent_of(first)) == (f"send {queue}", derived("trace-1"))


def test_a_dataframe_handler_has_a_span_and_so_has_what_it_returns(
    spark: Any, redis_server: Any, queue: str, tmp_path: Path, collecting: Collector, tracing: str
) -> None:
    options = {"url": redis_server.url, "queue": queue}
    spark.sql("SELECT 'urn:a' AS job, '{}' AS data").write.format("babelqueue").options(**options).mode(
        "append"
    ).save()
    worker = Worker(options, state=str(tmp_path / "worker"), tracing=tracing)

    @worker.dataframe_handler("urn:*")
    def answer(frame: Any, _: int) -> Any:
        return frame.selectExpr("'urn:b' AS job", "'{}' AS data", "trace_id", f"'{queue}-out' AS queue")

    worker.run(spark.read.format("babelqueue").options(**options).load())
    [row] = (
        spark.read.format("babelqueue").options(url=redis_server.url, queue=f"{queue}-out").load().collect()
    )
    spans = {span.name: span for span in collecting.spans}
    assert sorted(spans) == ["foreachBatch", "process", f"send {queue}-out"]
    assert row.headers == {"traceparent": context_of(spans[f"send {queue}-out"])}
    assert parent_of(spans["process"]) == context_of(spans["foreachBatch"])
    [link] = spans["foreachBatch"].links
    assert context_of(link) == derived(row.trace_id)


@pytest.mark.parametrize("text", ["otel", "a.b", "a:b:c", "a b:c"])
def test_a_source_that_cannot_be(text: str) -> None:
    with pytest.raises(OptionError, match="takes 'environment', or the function that returns a Tracer"):
        write_options({"url": "redis://localhost", "tracing": text})


def test_reads_have_no_spans() -> None:
    with pytest.raises(OptionError, match="'tracing' has no meaning when reading"):
        read_options({"url": "redis://localhost", "queue": "orders", "tracing": "environment"})
