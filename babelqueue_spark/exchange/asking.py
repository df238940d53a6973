"""Ask: publish a request, and wait for its reply in a queue of its own."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import Binding
from babelqueue_spark.bindings.batches import HEADERS
from babelqueue_spark.connector.message_log import MessageLog, message_log
from babelqueue_spark.connector.options import envelope_options
from babelqueue_spark.connector.publishing import publish
from babelqueue_spark.connector.rows.given import extra_of, json_of
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.envelope import META_TYPE, decode
from babelqueue_spark.errors import OptionError, RequestFailedError, RequestTimeoutError
from babelqueue_spark.worker.handlers.responder import REQUEST_FAILED
from babelqueue_spark.worker.messages import (
    CAUSATION_META,
    CORRELATION_HEADER,
    REPLY_TO_HEADER,
    REPLY_TO_META,
    Message,
)

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
_LATE = 600.0
"""Seconds after the timeout for which a reply still finds its queue, on a broker where queues are made."""
_CLAIMED_AT_ONCE = 100
_CLAIMED_BYTES = 64 << 20


def ask(
    options: Mapping[str, Any],
    urn: str,
    data: Mapping[str, Any],
    *,
    timeout: float = 30.0,
    reply_queue: str | None = None,
    trace_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Message:
    """Publish a request and wait for its reply, on the driver; a `worker.responder` answers it.

    The first reply counts. Whatever else is in the reply queue is removed from it.

    Args:
        options: those of a write; `queue` is where the request goes.
        urn: of the request.
        data: its payload, of JSON's types.
        timeout: seconds to wait.
        reply_queue: where this call alone reads replies; by default a new one. Name one on brokers whose
            queues have to be there, such as SQS.
        trace_id: that of the message which the request follows from; by default a new one.
        headers: that go along, on brokers that keep headers.
        meta: further keys of `meta`, such as `causation_id`.

    Raises:
        RequestFailedError: the responder raised.
        RequestTimeoutError: no reply came in time.
        OptionError: an option, `data` or `meta` is invalid, or nothing can be taken out of the broker
            (Kafka).
        BabelQueueError: the broker keeps no headers.
    """
    given = {name: str(value) for name, value in options.items()}
    parsed = envelope_options(given, "ask")
    if not parsed.queue:
        raise OptionError("ask needs the option 'queue', which names where the request goes")
    deadline = time.monotonic() + timeout
    request_id = str(uuid.uuid4())
    if reply_queue in parsed.queue:
        raise OptionError("ask needs a reply_queue other than 'queue': it takes all messages from there")
    with (
        parsed.queue_binding() as binding,
        message_log(parsed.message_log, f"asked-{request_id}", binding, parsed.catalog) as lines,
    ):
        queue = reply_queue or _new_queue(binding, request_id)
        binding.check_queue(queue)
        if reply_queue is None:
            binding.make_temporary(queue, timeout + _LATE)
        binding.backlog(queue)  # creates it where it is missing: a reply goes only to a queue that is there
        request = pa.RecordBatch.from_pydict(
            {
                "job": pa.array([urn], pa.string()),
                "data": pa.array([json_of(dict(data), f"'{urn}'")], pa.string()),
                "trace_id": pa.array([trace_id], pa.string()),
                **_addressed(binding, urn, request_id, queue, headers or {}, meta or {}),
            }
        )
        ids, names = IdSource(request_id), [f"request '{urn}'"]
        for target, messages in to_messages(request, 0, ids, parsed, binding, names=names).items():
            publish(binding, target, messages, lines=lines)
        for reply in _replies(binding, queue, deadline, lines):
            if _answers(reply, request_id):
                return _checked(reply, urn)
            logger.info("queue %s: ignored message %r, which answers another request", queue, reply.id)
    raise RequestTimeoutError(
        f"{binding.title}: no reply to '{urn}' came within {timeout:g} s: is a responder at queue "
        f"'{parsed.queue[0]}'? The request may still be handled"
    )


def _new_queue(binding: Binding, request_id: str) -> str:
    """Return a name for a reply queue; in a Redis Cluster it needs a hash tag."""
    name = f"replies-{request_id}"
    try:
        binding.check_queue(name)
    except OptionError:
        return f"{{{name}}}"
    return name


def _addressed(
    binding: Binding,
    urn: str,
    request_id: str,
    reply_queue: str,
    headers: Mapping[str, str],
    meta: Mapping[str, Any],
) -> dict[str, pa.Array]:
    """Return the columns that name the reply queue: `meta` only where there are no headers."""
    if binding.capabilities.headers:
        headers = {**headers, REPLY_TO_HEADER: reply_queue}
    else:
        meta = {**meta, REPLY_TO_META: reply_queue}
    kind = pa.struct([META_TYPE.field("id"), META_TYPE.field("extra")])
    return {
        "meta": pa.array([{"id": request_id, "extra": extra_of(meta, f"'{urn}'")}], kind),
        "headers": pa.array([[*headers.items()] or None], HEADERS),
    }


def _replies(binding: Binding, queue: str, deadline: float, lines: MessageLog) -> Iterator[Message]:
    """Take what comes to the queue until the time is over."""
    pause = _SHORTEST_PAUSE
    most = min(_CLAIMED_AT_ONCE, binding.capabilities.claim_batch)
    while True:
        left = deadline - time.monotonic()
        batch = binding.claim(queue, most, _CLAIMED_BYTES)
        if batch.num_rows:
            binding.acknowledge(queue, batch)
            lines.write_all("taken", batch, queue)
            yield from _messages(queue, batch)
            pause = _SHORTEST_PAUSE
        if left <= 0:
            return
        if not batch.num_rows:
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)


def _messages(queue: str, deliveries: pa.RecordBatch) -> Iterator[Message]:
    """Yield the valid envelopes among `DELIVERIES`."""
    envelopes = decode(deliveries.column("body"))
    columns = (
        envelopes.column("error"),
        envelopes.column("job"),
        envelopes.column("trace_id"),
        pc.struct_field(envelopes.column("meta"), "id"),
        envelopes.column("attempts"),
        deliveries.column("body"),
        deliveries.column("headers"),
        deliveries.column("key"),
    )
    for error, job, trace_id, message_id, attempts, body, headers, key in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        if error is not None:
            logger.warning("queue %s: ignored a reply that is no envelope: %s", queue, error)
            continue
        found = {name: value for name, value in headers or () if value is not None}
        yield Message(job, trace_id, message_id, attempts, queue, body, found, key)


def _answers(reply: Message, request_id: str) -> bool:
    return request_id in (reply.headers.get(CORRELATION_HEADER), reply.meta.get(CAUSATION_META))


def _checked(reply: Message, urn: str) -> Message:
    """Return the reply; raises what it reports."""
    if reply.job != REQUEST_FAILED:
        return reply
    reason, exception, error = (reply.data.get(name) for name in ("reason", "exception", "error"))
    text = " ".join(str(error or "no text").split())
    raise RequestFailedError(
        f"the responder of '{urn}' raised {exception}: {text} (reason '{reason}')", reason, exception, error
    )
