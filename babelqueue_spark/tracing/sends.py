"""Give messages that go out the trace context of the span that sends them."""

from collections.abc import Sequence
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.bindings.batches import envelopes_of
from babelqueue_spark.tracing.contexts import TRACEPARENT, derived, sent


class Send(TypedDict):
    """The span that sends one message, and its parent's `traceparent`, before it is made; of JSON's types."""

    queue: str
    id: str
    traceparent: str
    parent: str


def with_traceparents(
    messages: pa.RecordBatch, queue: str, *, headers: bool, parents: Sequence[str | None] | None = None
) -> tuple[pa.RecordBatch, list[Send]]:
    """Give messages without a `traceparent` one of their own; returns them, and the spans of it.

    Args:
        messages: `OUTGOING`, and other columns.
        queue: where they go.
        headers: whether the broker keeps any; without them the messages stay as they are.
        parents: the `traceparent` that each follows from; by default what its `trace_id` stands for.
    """
    envelopes = envelopes_of(messages)
    trace_ids = envelopes.column("trace_id").to_pylist()
    ids = pc.struct_field(envelopes.column("meta"), "id").to_pylist()
    given = [dict(each or ()) for each in messages.column("headers").to_pylist()]
    sends: list[Send] = []
    for row, (trace_id, message_id, names) in enumerate(zip(trace_ids, ids, given, strict=True)):
        parent = parents[row] if parents is not None else trace_id and derived(trace_id)
        if not parent or not message_id or names.get(TRACEPARENT):
            continue
        own = sent(parent, queue, message_id)
        names[TRACEPARENT] = own
        sends.append(Send(queue=queue, id=message_id, traceparent=own, parent=parent))
    if not headers or not sends:
        return messages, sends
    column = pa.array([list(names.items()) or None for names in given], OUTGOING.field("headers").type)
    place = messages.schema.get_field_index("headers")
    return messages.set_column(place, OUTGOING.field("headers"), column), sends
