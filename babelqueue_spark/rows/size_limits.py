"""Leave out dead-letter blocks that would make a message larger than its queue takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING, BaseBinding
from babelqueue_spark.envelope import strip_dead_letter
from babelqueue_spark.errors import BabelQueueError

logger = logging.getLogger(__name__)


def within_bounds(
    messages: pa.RecordBatch, received: pa.BinaryArray, targets: Sequence[str], binding: BaseBinding
) -> pa.RecordBatch:
    """Replace messages that their block makes larger than their queue takes by what was received.

    Args:
        messages: columns of `OUTGOING`, and perhaps others.
        received: the body that each had without its block; null for what is no dead letter.
        targets: the queue where each goes.
        binding: knows what is too large. Where it cannot tell, the publish says why.
    """
    sizes = (pc.fill_null(pc.binary_length(body), 0) for body in (messages.column("body"), received))
    grown = pc.and_(pc.is_valid(received), pc.greater(*sizes))
    rows: dict[str, list[int]] = {}
    for row in pc.indices_nonzero(grown).to_pylist():
        rows.setdefault(targets[row], []).append(row)
    try:
        refused = {
            row: target
            for target, its in rows.items()
            for row in _too_large(messages.select(OUTGOING.names), its, target, binding)
        }
    except BabelQueueError:
        return messages
    if not refused:
        return messages
    logger.warning(
        "%d dead letters go without a block, which would make them larger than %s takes",
        len(refused),
        " and ".join(sorted(set(refused.values()))),
    )
    bare = pa.array([row in refused for row in range(len(messages))], pa.bool_())
    place = messages.schema.get_field_index("body")
    bodies = pc.if_else(bare, received, messages.column(place))
    return messages.set_column(place, messages.schema.field(place), bodies)


def without_large_blocks(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Strip the dead-letter blocks of messages that a queue may have refused for their size.

    A block stays where its message is no larger than the largest one without a block: that one came from a
    queue.

    Args:
        messages: columns of `OUTGOING`.
    """
    bodies = messages.column("body")
    bare = strip_dead_letter(bodies)
    grown = pc.greater(pc.binary_length(bodies), pc.max(pc.binary_length(bare)))
    place = messages.schema.get_field_index("body")
    return messages.set_column(place, messages.schema.field(place), pc.if_else(grown, bare, bodies))


def _too_large(messages: pa.RecordBatch, rows: list[int], target: str, binding: BaseBinding) -> list[int]:
    found = binding.too_large(target, messages.take(pa.array(rows)))
    return [rows[place] for place in found]
