"""The `TracerProvider` of this process: made once, after Spark has forked it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator

from babelqueue_spark.errors import OptionError

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_GROUP = "opentelemetry_traces_exporter"

_providers: dict[str, tuple[TracerProvider, GivenIds]] = {}
_lock = threading.Lock()


class GivenIds(IdGenerator):
    """The ids of a provider, but a span that a message already names gets that id."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids
        self._next = threading.local()

    @contextmanager
    def giving(self, span_id: int) -> Iterator[None]:
        """Give this id to the span that the block starts."""
        self._next.span_id = span_id
        try:
            yield
        finally:
            self._next.span_id = None

    def generate_span_id(self) -> int:
        return getattr(self._next, "span_id", None) or self._ids.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._ids.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return self._ids.is_trace_id_random()


def provider_of(key: str, source: str | Callable[[], Any]) -> tuple[TracerProvider, GivenIds]:
    """Return the provider of this process that `key` names, with what gives its spans their ids.

    Raises:
        OptionError: the source gives none.
    """
    with _lock:
        if key not in _providers:
            provider = _made(source)
            if not isinstance(provider, TracerProvider):
                raise OptionError(
                    "tracing takes a function that returns a TracerProvider of opentelemetry-sdk, but it "
                    f"returned a {type(provider).__name__}"
                )
            ids: IdGenerator = provider.id_generator
            given = ids if isinstance(ids, GivenIds) else GivenIds(ids)
            provider.id_generator = given  # type: ignore[assignment]  # typed as the default
            _providers[key] = provider, given
        return _providers[key]


def _made(source: str | Callable[[], Any]) -> Any:
    if not isinstance(source, str):
        return source()
    module, colon, name = source.partition(":")
    if not colon:
        return from_environment()
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"tracing names '{source}', which this process cannot import, on driver and executors: {error}"
        ) from None
    return function()


def from_environment() -> TracerProvider:
    """Make a provider that exports as the variables `OTEL_*` say.

    Raises:
        OptionError: they name an exporter that is not installed here.
    """
    provider = TracerProvider()
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        if name.strip() not in ("", "none"):
            provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
    return provider


def _exporter(name: str) -> Any:
    if name == "otlp":
        protocol = (
            os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            or "http/protobuf"
        )
        name = _PROTOCOLS.get(protocol.strip(), protocol)
    found = [*entry_points(group=_GROUP, name=name)]
    if not found:
        raise OptionError(
            f"tracing from the environment needs the exporter '{name}': install the package that brings it, "
            "such as opentelemetry-exporter-otlp-proto-http, on driver and executors"
        )
    return found[0].load()()
