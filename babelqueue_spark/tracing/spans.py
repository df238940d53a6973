"""Start spans about messages. It imports OpenTelemetry: `Tracing.spans` imports it where tracing is on."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from babelqueue_spark.tracing.contexts import TRACEPARENT, derived
from babelqueue_spark.tracing.provider import GivenIds
from babelqueue_spark.tracing.sends import Send

logger = logging.getLogger(__name__)

MOST_LINKS = 128
"""Links of the span of a batch."""
FLUSH_SECONDS = 10

_SYSTEMS = {"artemis": "activemq", "sqs": "aws_sqs"}
_PROPAGATOR = TraceContextTextMapPropagator()


class Received(Protocol):
    """What a span says about a message that was read."""

    queue: str
    headers: Mapping[str, str]
    trace_id: str | None
    id: str | None
    attempts: int
    job: str


class Call:
    """The span of a handler that is called."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The context of what follows from the call; None where OpenTelemetry is disabled."""
        return _text_of(self._span)

    def failed(self, exception: str) -> None:
        """Note the class of what the handler raised. Its text stays out: it may hold what a message holds."""
        self._span.set_attribute("error.type", exception)
        self._span.set_status(Status(StatusCode.ERROR))


class Batch(Call):
    """The span of a micro-batch."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self._links = 0

    def link(self, contexts: Iterable[str]) -> None:
        """Link to messages, by their `traceparent`; to `MOST_LINKS` of them."""
        for text in contexts:
            if self._links < MOST_LINKS:
                self._span.add_link(_span_context(_context_of(text)))
                self._links += 1

    def count(self, messages: int) -> None:
        self._span.set_attribute("messaging.batch.message_count", messages)


class Spans:
    """Starts the spans of this process about messages of a broker. A context manager, which exports them."""

    def __init__(self, provider: TracerProvider, ids: GivenIds, broker: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("babelqueue_spark")
        self._ids = ids
        self._system = _SYSTEMS.get(broker, broker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Export what has ended, before Spark ends this process; no error, as messages come first."""
        try:
            done = self._provider.force_flush(FLUSH_SECONDS * 1000)
        except Exception as error:  # noqa: BLE001 (whatever a processor raises)
            logger.warning("spans were not exported: %s", type(error).__name__)
            return
        if not done:
            logger.warning("spans were not exported within %d s", FLUSH_SECONDS)

    @contextmanager
    def batch(self, query: str, number: int) -> Iterator[Batch]:
        """Open the span of a micro-batch, on the driver; it is exported when the block ends."""
        attributes = {
            **self._operation("process"),
            "messaging.operation.name": "foreachBatch",
            "messaging.babelqueue.query": query,
            "messaging.babelqueue.batch": number,
        }
        with self, self._current("foreachBatch", SpanKind.CONSUMER, attributes) as span:
            yield Batch(span)

    @contextmanager
    def dataframe_handler(self, pattern: str) -> Iterator[None]:
        """Open the span of a DataFrame handler, on the driver, below that of its batch."""
        attributes = {**self._operation("process"), "messaging.babelqueue.handler": pattern}
        with self._current("process", SpanKind.INTERNAL, attributes):
            yield

    @contextmanager
    def process(self, message: Received, batch: str | None, subscriber: str | None = None) -> Iterator[Call]:
        """Open the span of a handler or subscriber below that of its sender; it links to a batch."""
        attributes = {
            **self._operation("process"),
            "messaging.destination.name": message.queue,
            "messaging.message.id": message.id,
            "messaging.message.conversation_id": message.trace_id or "",
            "messaging.babelqueue.attempts": message.attempts,
            "messaging.babelqueue.job": message.job,
            "messaging.babelqueue.subscriber": subscriber,
        }
        with self._current(
            f"process {message.queue}",
            SpanKind.CONSUMER,
            {name: value for name, value in attributes.items() if value is not None},
            context=_parent(message.headers, message.trace_id),
            links=[Link(_span_context(_context_of(batch)))] if batch else [],
        ) as span:
            yield Call(span)

    def context_of(self, message: Received) -> str | None:
        """Return the `traceparent` of the span that sent a message, as `process` finds it."""
        return _text_of(get_current_span(_parent(message.headers, message.trace_id)))

    @contextmanager
    def sending(self, sends: Sequence[Send]) -> Iterator[None]:
        """Open the spans of messages that the block publishes. Repeated, they are the same spans."""
        calls = [(span, Call(span)) for span in map(self._started, sends)]
        try:
            yield
        except BaseException as error:
            for _, call in calls:
                call.failed(type(error).__name__)
            raise
        finally:
            for span, _ in calls:
                span.end()

    def _operation(self, name: str) -> dict[str, Any]:
        return {
            "messaging.system": self._system,
            "messaging.operation.type": name,
            "messaging.operation.name": name,
        }

    @contextmanager
    def _current(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """Open a span that is current in the block, and note the class of what the block raises."""
        with self._tracer.start_as_current_span(
            name,
            context,
            kind,
            attributes,
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                Call(span).failed(type(error).__name__)
                raise

    def _started(self, send: Send) -> Span:
        attributes = {
            **self._operation("send"),
            "messaging.destination.name": send["queue"],
            "messaging.message.id": send["id"],
        }
        with self._ids.giving(_span_context(_context_of(send["traceparent"])).span_id):
            return self._tracer.start_span(
                f"send {send['queue']}", _context_of(send["parent"]), SpanKind.PRODUCER, attributes
            )


def _parent(headers: Mapping[str, str], trace_id: str | None) -> Context:
    """Return what the message's `traceparent` names, else what its `trace_id` stands for, else nothing."""
    if headers.get(TRACEPARENT):
        carried = _PROPAGATOR.extract(headers)
        if _span_context(carried).is_valid:
            return carried
    return _context_of(derived(trace_id)) if trace_id else Context()


def _context_of(traceparent: str) -> Context:
    return _PROPAGATOR.extract({TRACEPARENT: traceparent})


def _span_context(context: Context) -> SpanContext:
    return get_current_span(context).get_span_context()


def _text_of(span: Span) -> str | None:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span))
    return carrier.get(TRACEPARENT)
