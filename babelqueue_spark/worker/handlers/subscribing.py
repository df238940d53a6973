"""Run the subscribers of a message that was handled; one that raises becomes `execution_failed`."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.worker.events import log_subscriber_failed
from babelqueue_spark.worker.handlers.calls import Steps
from babelqueue_spark.worker.handlers.routes import Subscriber
from babelqueue_spark.worker.handlers.rules import Rules
from babelqueue_spark.worker.messages import (
    EXECUTION_FAILED,
    Context,
    Message,
    Outgoing,
    outgoing_rows,
)
from babelqueue_spark.worker.outcomes import shortened, text_of

if TYPE_CHECKING:
    from babelqueue_spark.tracing.spans import Call

LONGEST_ERROR = 2_048
"""Characters of its `error`."""
LONGEST_STACK_TRACE = 16_384
"""Characters of its `stack_trace`, of which the last ones count."""
LARGEST_ENVELOPE = 1 << 20
"""Bytes of its `envelope`: within what each broker takes that does not tell its limit."""


def notified(subscriber: Subscriber, message: Message, context: Context, rules: Rules) -> Steps:
    """Run a subscriber; what it returned as rows of a write, or `execution_failed` where it raised."""
    parent = None
    try:
        with _call(subscriber, message, rules) as call:
            parent = None if call is None else call.traceparent
            result = yield subscriber.step(message)
            returned = outgoing_rows(result, message, headers=rules.headers, context=context, parent=parent)
            rules.check(returned)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 (whatever it raises)
        log_subscriber_failed(message, subscriber.name, shortened(text_of(error)), type(error).__name__)
        described = _described(subscriber, error, message)
        return _execution_failed(described, message, context, rules, parent)
    return returned


def _call(subscriber: Subscriber, message: Message, rules: Rules) -> AbstractContextManager[Call | None]:
    """Return the span of the subscriber; None where tracing is off."""
    if rules.spans is None:
        return nullcontext()
    return rules.spans.process(message, rules.batch_span, subscriber.name)


def _execution_failed(
    described: dict[str, Any], message: Message, context: Context, rules: Rules, parent: str | None
) -> list[dict[str, Any]]:
    """Return the row of the failure, without its longest parts where the broker cannot carry them."""
    found: list[dict[str, Any]] = []
    for data, kept in _attempts(described, context):
        event = Outgoing(job=EXECUTION_FAILED, data=data, queue=rules.publishing.failure_queue)
        found = outgoing_rows(event, message, headers=rules.headers, context=kept, parent=parent)
        try:
            rules.check(found)
        except BabelQueueError:
            continue
        break
    return found


def _attempts(data: dict[str, Any], context: Context) -> Iterator[tuple[dict[str, Any], Context]]:
    yield data, context
    yield {**data, "stack_trace": None, "envelope": None}, context
    yield {**data, "stack_trace": None, "envelope": None}, dict


def _described(subscriber: Subscriber, error: BaseException, message: Message) -> dict[str, Any]:
    whole = len(message.body) <= LARGEST_ENVELOPE
    return {
        "subscriber": subscriber.name,
        "pattern": subscriber.pattern,
        "exception": type(error).__name__,
        "error": shortened(text_of(error), LONGEST_ERROR - 1),
        "stack_trace": _stack_trace(error),
        "job": message.job,
        "id": message.id,
        "queue": message.queue,
        "envelope": message.body.decode() if whole else None,
    }


def _stack_trace(error: BaseException) -> str | None:
    """Return the error's lines as Python prints them, from the subscriber on."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_globals["__name__"].startswith("babelqueue_spark."):
        own = own.tb_next
    lines = "".join(traceback.format_exception(type(error), error, own or error.__traceback__))
    text = shortened(lines, len(lines)) or ""
    return text[-LONGEST_STACK_TRACE:] or None
