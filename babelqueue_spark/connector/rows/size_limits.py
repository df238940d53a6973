"""Cut dead-letter blocks that would make a message larger than its queue takes, or leave them out.

The one room for it: `within_bounds` where a binding knows the limit, `without_large_blocks` where a broker
tells it by a refusal. A body itself is never cut.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING, BaseBinding
from babelqueue_spark.connector.rows.carriers import carrier_of
from babelqueue_spark.envelope import dead_letter, decode, strip_dead_letter
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.forms import Form, Parts

logger = logging.getLogger(__name__)


def within_bounds(
    messages: pa.RecordBatch,
    received: pa.BinaryArray,
    targets: Sequence[str],
    binding: BaseBinding,
    form: Form,
) -> pa.RecordBatch:
    """Shorten blocks that make messages larger than their queue takes: no `error`, else no block at all.

    Args:
        messages: columns of `OUTGOING`, and perhaps others.
        received: the body that each had without its block; null for what is no dead letter.
        targets: the queue where each goes.
        binding: knows what is too large. Where it cannot tell, the publish says why.
        form: of the messages.
    """
    sizes = (pc.fill_null(pc.binary_length(body), 0) for body in (messages.column("body"), received))
    larger = pc.or_(form.native, pc.greater(*sizes))
    grown = pc.indices_nonzero(pc.and_(pc.is_valid(received), larger)).to_pylist()
    try:
        refused = _refused(messages, grown, targets, binding)
        if not refused:
            return messages
        if form.native:
            cut = _with_parts(messages, refused, _short(_rows(messages, refused), binding, form))
        else:
            cut = _with_bodies(messages, refused, _without_errors(messages.column("body")))
        bare = _refused(cut, refused, targets, binding)
    except BabelQueueError:
        return messages
    logger.warning(
        "the blocks of %d dead letters would make them larger than %s takes: %d go with a block cut to its "
        "reason, %d without a block",
        len(refused),
        " and ".join(sorted({targets[row] for row in refused})),
        len(refused) - len(bare),
        len(bare),
    )
    if form.native:
        return _with_parts(cut, bare, form.redriven(_rows(cut, bare)))
    return _with_bodies(cut, bare, received)


def without_large_blocks(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Strip the dead-letter blocks of messages that a queue may have refused for their size.

    A block stays where its message is no larger than the largest one without a block: that one came from a
    queue.

    Args:
        messages: columns of `OUTGOING`.
    """
    bodies = messages.column("body")
    dead = _blocks(bodies).is_valid()
    bare = pc.if_else(dead, strip_dead_letter(bodies), bodies)
    grown = pc.and_(dead, pc.greater(pc.binary_length(bodies), pc.max(pc.binary_length(bare))))
    return _with_bodies(messages, pc.indices_nonzero(grown).to_pylist(), bare)


def _refused(
    messages: pa.RecordBatch, rows: Sequence[int], targets: Sequence[str], binding: BaseBinding
) -> list[int]:
    """Return those of the rows that are too large for where they go."""
    by_target: dict[str, list[int]] = {}
    for row in rows:
        by_target.setdefault(targets[row], []).append(row)
    outgoing = messages.select(OUTGOING.names)
    return [
        its[place]
        for target, its in by_target.items()
        for place in binding.too_large(target, outgoing.take(pa.array(its)))
    ]


def _rows(messages: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    return messages.take(pa.array(rows, pa.int64()))


def _short(messages: pa.RecordBatch, binding: BaseBinding, form: Form) -> Parts:
    """Messages without an envelope, with short blocks."""
    blocks = form.decode(messages).column("dead_letter")
    return form.dead_lettered(messages, _cut(blocks), carrier_of(binding))


def _cut(blocks: pa.StructArray) -> pa.StructArray:
    """Return blocks without `error` and `exception`, the longest parts."""
    fields = [
        pa.nulls(len(blocks), field.type)
        if field.name in ("error", "exception")
        else blocks.field(field.name)
        for field in blocks.type
    ]
    return pa.StructArray.from_arrays(fields, fields=list(blocks.type))


def _without_errors(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """Envelopes with short blocks; others as they are."""
    blocks = _blocks(bodies)
    rows = pc.indices_nonzero(pc.and_(blocks.is_valid(), pc.is_null(decode(bodies).column("error"))))
    cut = _cut(blocks).take(rows)
    mask = pc.is_in(pa.array(range(len(bodies)), pa.uint64()), rows)
    return pc.replace_with_mask(bodies, mask, dead_letter(bodies.take(rows), cut))


def _blocks(bodies: pa.BinaryArray) -> pa.StructArray:
    return decode(bodies).column("dead_letter")


def _with_parts(messages: pa.RecordBatch, rows: Sequence[int], others: Parts) -> pa.RecordBatch:
    """Return the messages, those in `rows` with other bodies and headers."""
    parts = Parts(messages.column("body"), messages.column("headers")).replaced(rows, others)
    for name, column in zip(("body", "headers"), parts, strict=True):
        place = messages.schema.get_field_index(name)
        messages = messages.set_column(place, messages.schema.field(place), column)
    return messages


def _with_bodies(messages: pa.RecordBatch, rows: Sequence[int], bodies: pa.BinaryArray) -> pa.RecordBatch:
    """Return the messages, those in `rows` with other bodies."""
    place = messages.schema.get_field_index("body")
    chosen = pc.is_in(pa.array(range(len(messages))), pa.array(rows, pa.int64()))
    replaced = pc.if_else(chosen, bodies, messages.column(place))
    return messages.set_column(place, messages.schema.field(place), replaced)
