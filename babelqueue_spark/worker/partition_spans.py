"""What the spans of a partition need: which messages go out, and which came."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from babelqueue_spark.tracing import Send, with_traceparents
from babelqueue_spark.worker.deciding import Output
from babelqueue_spark.worker.destinations import Destinations
from babelqueue_spark.worker.rows import Rows

if TYPE_CHECKING:
    from babelqueue_spark.tracing.spans import Spans

_LINKS = 32
"""Links of the batch to messages of one partition."""


def sends_of(
    outputs: Sequence[Output], encoded: Sequence[pa.RecordBatch], destinations: Destinations
) -> tuple[list[pa.RecordBatch], list[Send]]:
    """Give what handlers returned the `traceparent` of the span that is to send it, a child of the handler's.

    Args:
        outputs: what handlers returned.
        encoded: the same as messages, in the order of each queue.
        destinations: the queue of each, and whether the broker keeps headers.
    """
    parents: dict[str, deque[str | None]] = defaultdict(deque)
    for output in outputs:
        if destinations.is_scheduled(output.columns):
            continue
        parents[destinations.queue_of(output.columns)].append(output.columns.get("parent"))
    headers = destinations.binding.capabilities.headers
    found: list[pa.RecordBatch] = []
    sends: list[Send] = []
    for messages in encoded:
        if not messages.column("job_id").null_count:
            found.append(messages)  # they are sent when they are released
            continue
        queue = messages.column("queue")[0].as_py()
        its = [parents[queue].popleft() for _ in range(len(messages))]
        traced, more = with_traceparents(messages, queue, headers=headers, parents=its)
        found.append(traced)
        sends += more
    return found, sends


def by_queue(sends: Iterable[Send]) -> defaultdict[str, list[Send]]:
    """Group spans by the queue that their messages go to."""
    found: defaultdict[str, list[Send]] = defaultdict(list)
    for send in sends:
        found[send["queue"]].append(send)
    return found


def links_of(rows: Rows, spans: Spans) -> list[str]:
    """Return the contexts in which the first messages of a partition were sent."""
    found = (spans.context_of(rows.message(row)) for row in range(min(len(rows), _LINKS)))
    return [context for context in found if context]
