"""The messages that handlers take and return, and the exceptions that they raise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from typing import Any

from babelqueue_spark.connector.rows.given import extra_of
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.forms import ENVELOPES, Form

BYPASS_HEADER = "bq-replay-bypass"
"""Any text in this header marks a redriven message whose effects outside are not wanted again."""
EXECUTION_FAILED = "urn:babel:worker:execution_failed"
"""The URN of a subscriber's failure."""
REPLY_TO_HEADER = "reply-to"
"""Names the queue that a request is answered to, where the broker keeps headers."""
REPLY_TO_META = "reply_to"
"""The key of `meta` that does, where it keeps none."""
CORRELATION_HEADER = "correlation-id"
"""Names the request that a reply answers, by its `meta.id`."""
CAUSATION_META = "causation_id"
"""The key of `meta` that names the message which a message follows from, by its `meta.id`."""
LONGEST_JOB_ID = 1_024
CANCELLED = "cancelled"
"""Has the name of a job among the columns of what a handler returned, where it is to be cancelled."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Retry(Exception):  # noqa: N818 (a word of the handlers' language)
    """Raise it to retry the message later; it counts as an attempt.

    Args:
        text: why, for the log and the dead letter.
        after: seconds to wait; by default what the worker's backoff says.
    """

    def __init__(self, text: str = "", *, after: float | None = None) -> None:
        if after is not None and not 0 <= after < float("inf"):
            raise ValueError(f"Retry(after={after}): after takes a number of seconds, 0 or more")
        super().__init__(text)
        self.after = after


class Reject(Exception):  # noqa: N818 (a word of the handlers' language)
    """Raise it to dead-letter the message at once, where a retry would not help.

    Args:
        reason: the dead letter's `reason`.
        text: its `error`.
    """

    def __init__(self, reason: str = "rejected", text: str = "") -> None:
        _check_text("Reject: reason", reason)
        super().__init__(text)
        self.reason = reason


class HandlerTimeoutError(BaseException):
    """A handler ran longer than the worker allows. No `Exception`, so that handlers do not swallow it."""


@dataclass(eq=False)
class Message:
    """One message that its form accepts, with its headers and key.

    Attributes:
        job: its URN; empty where a message without an envelope names none.
        trace_id: of the causal chain; None where a message without an envelope names none.
        id: `meta.id`; None where it has none.
        attempts: how often it failed before.
        queue: the queue that it was read from.
        body: the bytes as received.
        headers: as the broker delivered them.
        key: partition key, group or session.
        form: says what is in body and headers.
    """

    job: str
    trace_id: str | None
    id: str | None
    attempts: int
    queue: str
    body: bytes
    headers: Mapping[str, str]
    key: str | None
    form: Form = ENVELOPES

    @property
    def data(self) -> Any:
        """The payload: of an envelope an object, else any value of JSON. PHP's empty list is an object."""
        return self._content[0]

    @property
    def meta(self) -> dict[str, Any]:
        """The meta block, unknown keys included."""
        return self._content[1]

    @property
    def is_replay(self) -> bool:
        """Return whether it was redriven with `bypass`, which asks handlers for no effects outside."""
        return bool(self.headers.get(BYPASS_HEADER))

    @property
    def reply_to(self) -> str | None:
        """The queue for a reply: of the header `reply-to`, else `meta.reply_to`; None = none is wanted."""
        named = self.headers.get(REPLY_TO_HEADER) or self.meta.get(REPLY_TO_META)
        return named if isinstance(named, str) and named.strip() else None

    @cached_property
    def _content(self) -> tuple[Any, dict[str, Any]]:
        return self.form.content(self.body, self.headers)


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message that a handler returns, to be published.

    It continues the trace of the message that was handled: `trace_id`, and where the broker keeps headers
    `traceparent` and `tracestate`, unless it says otherwise.

    Attributes:
        job: its URN.
        data: its payload, of JSON's types.
        queue: where it goes; by default where the worker's `routes` say, else its option `queue`.
        trace_id: by default that of the message that was handled.
        headers: for brokers that keep headers.
        meta: further keys of `meta`, with values of JSON's types.
        key: partition key, group or session.
        delay: seconds before it can be read.
        send_at: the time, with its zone, until which it waits in the worker's `schedule`.
        job_id: its name there: it takes the place of a message with that name; by default a new one.

    Raises:
        TypeError, ValueError: one of them is not what it must be.
    """

    job: str
    data: Mapping[str, Any]
    queue: str | None = None
    trace_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    delay: float | None = None
    send_at: datetime | None = None
    job_id: str | None = None

    def __post_init__(self) -> None:
        _check_text("Outgoing: job", self.job)
        for name in ("queue", "trace_id", "key"):
            if (text := getattr(self, name)) is not None:
                _check_text(f"Outgoing: {name}", text)
        for text in chain.from_iterable(self.headers.items()):
            _check_text("Outgoing: a header", text)
        extra_of(self.meta, f"'{self.job}'")
        if self.delay is not None and not 0 <= self.delay < float("inf"):
            raise ValueError(f"Outgoing: delay takes a number of seconds, 0 or more, not {self.delay}")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.job_id is not None:
            _check_job_id("Outgoing", self.job_id)
        if self.send_at is None:
            if self.job_id is not None:
                raise ValueError("Outgoing: job_id names a scheduled message: give it a send_at too")
            return
        if not isinstance(self.send_at, datetime) or self.send_at.utcoffset() is None:
            raise ValueError(
                f"Outgoing: send_at takes a datetime with its zone, such as datetime.now(UTC), not "
                f"{self.send_at!r}"
            )
        if self.delay is not None:
            raise ValueError("Outgoing: send_at is a time and delay counts from now: give one of them")


@dataclass(frozen=True)
class Cancel:
    """A scheduled message that a handler takes back; one that is gone, or was never there, is passed over.

    Attributes:
        job_id: its name in the worker's `schedule`.
    """

    job_id: str

    def __post_init__(self) -> None:
        _check_job_id("Cancel", self.job_id)


@dataclass(frozen=True, kw_only=True)
class Reply(Outgoing):
    """The answer to a request; nobody misses it where its queue is gone.

    Attributes:
        exception: class of what the responder raised.
    """

    exception: str | None = None


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} takes a text, but this is of type {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half a surrogate pair, which no UTF-8 can hold") from None


def _check_job_id(name: str, job_id: Any) -> None:
    _check_text(f"{name}: job_id", job_id)
    if not 1 <= len(job_id) <= LONGEST_JOB_ID:
        raise ValueError(f"{name}: job_id has 1 to {LONGEST_JOB_ID} characters, not {len(job_id)}")


_TRACE_HEADERS = ("traceparent", "tracestate")


Context = Callable[[], Mapping[str, str]]
"""Gives the keys of `meta` that a message takes over, with their values as JSON text."""


def outgoing_rows(
    result: Any, message: Message, *, headers: bool, context: Context, parent: str | None = None
) -> list[dict[str, Any]]:
    """Return what a handler returned, as rows of a write, of JSON's types: an idempotency store keeps them.

    Args:
        result: None, an `Outgoing`, a `Cancel`, or several.
        message: the message that was handled.
        headers: whether the broker keeps any.
        context: of the message that was handled.
        parent: the `traceparent` of the span that handled it; None = tracing is off.

    Raises:
        BabelQueueError, TypeError, ValueError: it returned something else, or data that is no JSON.
    """
    if result is None:
        return []
    found = [result] if isinstance(result, (Outgoing, Cancel)) else result
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes, Mapping)):
        raise BabelQueueError(
            f"a handler returns nothing, or Outgoing messages, but this is of type {type(result).__name__}"
        )
    return [_row(each, message, headers, context(), parent) for each in found]


def _row(
    outgoing: Any, message: Message, headers: bool, context: Mapping[str, str], parent: str | None
) -> dict[str, Any]:
    if isinstance(outgoing, Cancel):
        return {CANCELLED: outgoing.job_id}
    if not isinstance(outgoing, Outgoing):
        raise BabelQueueError(
            f"a handler returns Outgoing messages, but this is of type {type(outgoing).__name__}"
        )
    is_reply = isinstance(outgoing, Reply)
    carried = _headers(message, parent, outgoing) if headers else {}
    own = dict(extra_of(outgoing.meta, f"'{outgoing.job}'"))
    kept = {CORRELATION_HEADER: message.id} if headers and is_reply and message.id else {}
    data = json.dumps(outgoing.data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    _check_text("Outgoing: data", data)
    return {
        "job": outgoing.job,
        "data": data,
        "queue": outgoing.queue,
        "trace_id": outgoing.trace_id or message.trace_id,
        "headers": {**carried, **outgoing.headers, **kept} or None,
        "key": outgoing.key,
        "delay": outgoing.delay,
        "send_at": None if outgoing.send_at is None else (outgoing.send_at - _EPOCH) // _MICROSECOND,
        "job_id": outgoing.job_id,
        "extra": {**own, **context} if is_reply else {**context, **own},
        "reply": is_reply,
        "parent": parent,
    }


def _headers(message: Message, parent: str | None, outgoing: Outgoing) -> dict[str, str]:
    """Return the headers by which a message continues the trace; one that is sent now gets its span's."""
    names = _TRACE_HEADERS if parent is None else _TRACE_HEADERS[1:]
    carried = {name: message.headers[name] for name in names if name in message.headers}
    if parent is not None and outgoing.send_at is not None:
        carried[_TRACE_HEADERS[0]] = parent
    return carried
