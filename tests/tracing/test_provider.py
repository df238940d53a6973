"""Where a process gets its provider, and what it says where there is none."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from babelqueue_spark.errors import MissingPackageError, OptionError
from babelqueue_spark.tracing import Send, Tracing
from tests.programs import without

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SEND = Send(
    queue="orders",
    id="1",
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01",
    parent=PARENT,
)


def failing() -> TracerProvider:
    """A provider whose processor cannot export."""

    class Failing(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            raise ConnectionError("redis://:secret@host")

    provider = TracerProvider()
    provider.add_span_processor(Failing())
    return provider


def nothing() -> None:
    """No provider."""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (nothing, "returned a NoneType"),
        (f"{__name__}:nothing", "returned a NoneType"),
        (f"{__name__}:missing", f"names '{__name__}:missing', which this process cannot import"),
        ("no_such_module:make", "which this process cannot import, on driver and executors: No module named"),
    ],
)
def test_a_source_without_a_provider(source: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Tracing.of(source).spans("redis")


def test_a_source_that_is_no_function() -> None:
    with pytest.raises(OptionError, match="but this is of type int"):
        Tracing.of(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "exporter"),
    [("OTEL_TRACES_EXPORTER", "zipkin", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/json")],
)
def test_an_exporter_that_is_not_installed(
    name: str, value: str, exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("babelqueue_spark.tracing.provider._providers", {})
    monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=f"needs the exporter '{exporter}': install the package that"):
        Tracing.of("environment").spans("redis")


def test_the_environment_names_the_exporter_and_the_service(tmp_path: Path) -> None:
    program = (
        "from babelqueue_spark.tracing import Tracing\n"
        "with Tracing.of('environment').spans('redis') as spans, spans.batch('query', 7): pass"
    )
    variables = {"OTEL_TRACES_EXPORTER": "console,none", "OTEL_SERVICE_NAME": "billing"}
    done = without([], program, tmp_path, **variables)
    span = json.loads(done.stdout)
    assert span["resource"]["attributes"]["service.name"] == "billing"
    assert (span["name"], span["attributes"]["messaging.babelqueue.batch"]) == ("foreachBatch", 7)


def test_spans_have_the_names_of_the_conventions_and_the_ids_that_messages_name() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    spans = Tracing.of(lambda: provider).spans("sqs")
    for error in (None, TimeoutError("at redis://:secret@host")):
        try:
            with spans.sending([SEND]):
                if error is not None:
                    raise error
        except TimeoutError:
            continue
    first, repeated = kept.get_finished_spans()
    assert first.attributes == {
        "messaging.system": "aws_sqs",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": "1",
    }
    assert repeated.attributes["error.type"] == "TimeoutError"
    assert "secret" not in repeated.to_json()
    assert {span.context.span_id for span in (first, repeated)} == {int("1" * 16, 16)}
    assert first.parent.span_id == int(PARENT.split("-")[2], 16)
    with spans.batch("query", 7):
        pass
    assert kept.get_finished_spans()[-1].context.span_id != first.context.span_id
    unsampled = {name: SEND[name][:-2] + "00" for name in ("parent", "traceparent")}
    with spans.sending([{**SEND, **unsampled}]):
        pass
    assert len(kept.get_finished_spans()) == 3


def test_messages_go_on_where_spans_cannot_be_exported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "babelqueue_spark.tracing"), Tracing.of(failing).spans("redis"):
        pass
    assert caplog.messages == ["spans were not exported: ConnectionError"]


def test_without_opentelemetry_its_extra_is_named(tmp_path: Path) -> None:
    program = "from babelqueue_spark.tracing import Tracing; Tracing.of('environment')"
    done = without(["opentelemetry"], program, tmp_path)
    assert f"{MissingPackageError.__name__}: " in done.stderr
    assert 'pip install "babelqueue-spark[otel]" on driver and executors' in done.stderr
