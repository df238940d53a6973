"""A request between two programs, without Spark: one asks, the other answers as a worker does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings import OUTGOING, BaseBinding, BindingConfig
from babelqueue_spark.connector.options import Options, write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.envelope import decode
from babelqueue_spark.worker import Message
from babelqueue_spark.worker.deciding import Output
from babelqueue_spark.worker.destinations import Destinations
from babelqueue_spark.worker.handlers.calls import Step
from babelqueue_spark.worker.handlers.responder import Responder
from babelqueue_spark.worker.messages import CAUSATION_META, Reply, outgoing_rows
from babelqueue_spark.worker.outgoing import encode_outputs


def options_of(binding: BaseBinding, config: BindingConfig, queue: str) -> dict[str, str]:
    """Return the options of a write to a queue."""
    own = {f"{binding.name}.{name}": value for name, value in config.client_options.items()}
    return {"broker": binding.name, "url": config.url, "queue": queue, **own}


def reply_of(options: Options, message: Message, returned: Any) -> Reply:
    """Return the reply of a responder whose function returns this."""
    steps = Responder(options).reply(message, Step(lambda: returned, is_async=False, is_inline=True))
    try:
        steps.send(next(steps).blocking())
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    raise AssertionError("a responder calls its function once")


def answer(binding: BaseBinding, options: Mapping[str, str], request: pa.RecordBatch) -> None:
    """Publish the reply to a request, which is a delivery: its payload, as it came."""
    [envelope] = decode(request.column("body")).to_pylist()
    [delivery] = request.select(["body", "headers", "key"]).to_pylist()
    headers = {name: value for name, value in delivery["headers"] or () if value is not None}
    message = Message(
        envelope["job"],
        envelope["trace_id"],
        envelope["meta"]["id"],
        envelope["attempts"],
        options["queue"],
        delivery["body"],
        headers,
        delivery["key"],
    )
    given = write_options(options)
    reply = reply_of(given, message, {"asked": message.data})
    cause = {CAUSATION_META: json.dumps(message.id)}
    [columns] = outgoing_rows(reply, message, headers=binding.capabilities.headers, context=lambda: cause)
    [encoded], failures = encode_outputs(
        [Output(0, columns)], IdSource(str(message.id)), Destinations(given, binding)
    )
    assert not failures
    binding.publish(reply.queue or "", encoded.select(OUTGOING.names))
