"""Encode the rows of a write as bodies, and fill in what an envelope needs and a row leaves out."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import ENVELOPE_COLUMN
from babelqueue_spark.connector.rows.columns import WriteRows, not_empty
from babelqueue_spark.connector.rows.dead_letters import dead_letter_blocks
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.envelope import META_TYPE, EnvelopeError
from babelqueue_spark.envelope.columns import BLANKS, TIMESTAMP
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.forms import Carrier, Parts

_NOTHING_BESIDE = Carrier(headers=False, names=False)


def bodies(
    rows: WriteRows, queues: pa.StringArray, ids: IdSource, kept: pa.BooleanArray | None = None
) -> pa.BinaryArray:
    """Encode the body of each row, as `parts_and_envelopes` does."""
    kept = pa.repeat(False, len(rows)) if kept is None else kept
    return parts_and_envelopes(rows, rows.block, queues, ids, kept, _NOTHING_BESIDE)[0].bodies


def parts_and_envelopes(
    rows: WriteRows,
    blocks: pa.StructArray,
    queues: pa.StringArray,
    ids: IdSource,
    kept: pa.BooleanArray,
    carrier: Carrier,
) -> tuple[Parts, pa.StructArray | None]:
    """Encode the body and the headers of each row; a dead letter that has a body keeps it, with its block.

    Args:
        rows: to encode.
        blocks: the dead-letter block of each; null for what is no dead letter.
        queues: the queue of each.
        ids: source of missing ids.
        kept: rows that keep the body which they were read with.
        carrier: what the broker carries.

    Returns:
        The bodies and headers, and the `ENVELOPE_COLUMN` that each body was made of; None unless all bodies
        were made here, and say it.

    Raises:
        BabelQueueError: a row lacks what an envelope needs; names the row.
    """
    dead = blocks.is_valid()
    made = pc.and_not(pc.invert(kept), pc.and_(dead, rows.body.is_valid()))
    found, envelopes = Parts(rows.body, rows.headers), None
    if pc.any(made).as_py():
        found, envelopes = _made(rows, queues, ids, made, carrier)
    if not pc.any(dead).as_py():
        return found, envelopes
    blocks = _completed(rows, blocks, queues, dead)
    annotated = rows.form.dead_lettered(found.batch().filter(dead), blocks, carrier)
    return found.replaced(pc.indices_nonzero(dead).to_pylist(), annotated), None


def _made(
    rows: WriteRows, queues: pa.StringArray, ids: IdSource, made: pa.BooleanArray, carrier: Carrier
) -> tuple[Parts, pa.StructArray | None]:
    """Encode the rows where `made`; the others have their body. Gives the envelopes if that is all rows."""
    messages, form = _messages(rows, queues, ids), rows.form
    everything = pc.all(made).as_py()
    try:
        if everything:
            encoded = form.encode(messages, rows.headers, carrier)
        else:
            encoded = form.encode(messages.filter(made), rows.headers.filter(made), carrier)
    except EnvelopeError as error:
        row = rows.name(pc.indices_nonzero(made)[error.row].as_py())
        raise BabelQueueError(
            f"a row cannot be written as an envelope ({row}: {error.field} {error.reason}): "
            "correct it, or set its dead_letter column"
        ) from None
    if not everything:
        others = pc.indices_nonzero(made).to_pylist()
        return Parts(rows.body, rows.headers).replaced(others, encoded), None
    if form.native:
        return encoded, None
    fields = list(ENVELOPE_COLUMN.type)
    return encoded, pa.StructArray.from_arrays(
        [messages.column(field.name) for field in fields], fields=fields
    )


def _messages(rows: WriteRows, queues: pa.StringArray, ids: IdSource) -> pa.RecordBatch:
    now = pa.scalar(time.time_ns() // 1_000_000 * 1000, TIMESTAMP)
    trace_id = rows.texts("trace_id")
    if not rows.form.native:
        trace_id = _minted(trace_id, "trace_id", rows.first, ids)
    meta = {
        "id": _minted(rows.meta("id"), "meta.id", rows.first, ids),
        "queue": pc.coalesce(rows.meta("queue"), queues),
        "lang": pc.fill_null(rows.meta("lang"), "python"),
        "schema_version": pc.fill_null(rows.meta("schema_version"), 1),
        "created_at": pc.fill_null(rows.meta("created_at"), now),
        "extra": rows.meta("extra"),
    }
    columns = {
        "job": rows.job,
        "trace_id": pc.ascii_trim(trace_id, characters=BLANKS),
        "data": rows.data,
        "meta": pa.StructArray.from_arrays([meta[field.name] for field in META_TYPE], fields=list(META_TYPE)),
        "attempts": pc.fill_null(rows.attempts, 0),
    }
    if rows.form.native:
        columns["body"] = rows.body
    return pa.RecordBatch.from_pydict(columns)


def _minted(given: pa.StringArray, purpose: str, first_row: int, ids: IdSource) -> pa.StringArray:
    if not given.null_count:
        return given
    return pc.coalesce(given, ids.uuids(purpose, first_row, len(given)))


def _completed(
    rows: WriteRows, blocks: pa.StructArray, queues: pa.StringArray, dead: pa.BooleanArray
) -> pa.StructArray:
    """Return the blocks of dead letters, with what they leave out filled in."""
    given = pa.RecordBatch.from_struct_array(blocks.filter(dead))
    counts = [given.column("attempts"), rows.attempts.filter(dead), pa.scalar(0, pa.int32())]
    return dead_letter_blocks(
        pc.fill_null(not_empty(given.column("reason")), "failed"),
        original_queues=queues.filter(dead),
        attempts=pc.coalesce(*counts),
        errors=given.column("error"),
        exceptions=given.column("exception"),
        failed_at=given.column("failed_at"),
        langs=not_empty(given.column("lang")),
    )
