"""Turn rows of a DataFrame into envelopes ready to publish."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING, BaseBinding
from babelqueue_spark.bindings.batches import ENVELOPE_COLUMN
from babelqueue_spark.bindings.options import seconds
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.bodies import parts_and_envelopes
from babelqueue_spark.connector.rows.carriers import carrier_of
from babelqueue_spark.connector.rows.columns import WriteRows, moments_of, not_empty
from babelqueue_spark.connector.rows.dead_letters import (
    dead_letter_blocks,
    dead_letter_queue,
    is_dead_letter_queue,
)
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.languages import warn_of_classes
from babelqueue_spark.connector.rows.size_limits import within_bounds
from babelqueue_spark.errors import BabelQueueError, InvalidPayloadError, OptionError
from babelqueue_spark.schemas.registry import Registry

logger = logging.getLogger(__name__)

_LONGEST_DELAY = 100 * 366 * 86_400
"""Seconds: a delay beyond it is a mistake."""
NO_QUEUE = "no_queue"
"""The reason of dead letters that name what is no queue."""
COLUMNS = (
    "job", "urn", "data", "trace_id", "queue", "attempts", "headers", "meta", "key", "delay", "deliver_at",
    "dead_letter", "body", "error", "violation", "delivery",
)  # fmt: skip
"""Columns a write takes. `error`, `violation` and `delivery` come from a read and are not written."""


def to_messages(
    rows: pa.RecordBatch,
    first_row: int,
    ids: IdSource,
    options: Options,
    binding: BaseBinding,
    *,
    dead_letters: bool = False,
    names: Sequence[str] | None = None,
) -> dict[str, pa.RecordBatch]:
    """Encode rows as envelopes, by physical queue, in the order of the rows.

    Args:
        rows: columns out of `COLUMNS`; at least job (or urn) and data, or body with dead_letter.
        first_row: number of the first row within its task.
        ids: source of missing ids.
        options: default queue, and where dead letters go.
        binding: its capabilities bound what headers, keys and delays may hold.
        dead_letters: rows that name what is no queue become dead letters of the default queue, if there is
            one.
        names: what errors call each row; None = its number.

    Returns:
        queue → `OUTGOING` batch, with the column `ENVELOPE_COLUMN` where all bodies were made here.

    Raises:
        BabelQueueError: a row lacks what it needs, or the broker cannot carry it; names the row.
    """
    large = options.large_numbers == "string"
    given = WriteRows(rows, first_row, names, options.form, quotes_large_numbers=large)
    _check_headers(given, binding)
    if not options.form.native:
        warn_of_classes(given.job)
    stray = _stray(given, options, binding)
    blocks = pc.if_else(stray, None, given.block) if pc.any(stray).as_py() else given.block
    if dead_letters and options.queue:
        blocks = _with_refused(given, blocks, options.queue[0], binding)
    queues = _queues(given, blocks, options)
    kept, carrier = _unchanged(given, stray), carrier_of(binding)
    parts, envelopes = parts_and_envelopes(given, blocks, queues, ids, kept, carrier)
    if options.catalog is not None:
        _check_payloads(given, blocks.is_null(), options.catalog)
    targets = _targets(queues, blocks, options, binding)
    _check_targets(given, targets, binding)
    delays = _delays(given, binding)
    _check_delays(delays, targets, binding)
    outgoing = pa.RecordBatch.from_arrays(
        [parts.bodies, parts.headers, _keys(given, binding), delays], schema=OUTGOING
    )
    if envelopes is not None:
        outgoing = outgoing.append_column(ENVELOPE_COLUMN, envelopes)
    if blocks.null_count < len(given):
        received = pc.if_else(blocks.is_valid(), given.body, None)
        outgoing = within_bounds(outgoing, received, targets.to_pylist(), binding, options.form)
    names = targets.unique().to_pylist()
    if len(names) == 1:
        return {names[0]: outgoing}
    return {name: outgoing.filter(pc.equal(targets, name)) for name in names}


def _check_payloads(rows: WriteRows, judged: pa.BooleanArray, catalog: Registry) -> None:
    """Raise for the first payload that has a violation; dead letters have theirs already."""
    if not pc.any(judged).as_py():
        return
    jobs = pc.if_else(judged, rows.job, None)
    violations = catalog.violations(jobs, rows.data)
    if violations.null_count < len(violations):
        row = pc.index(violations.is_valid(), True).as_py()
        raise InvalidPayloadError(
            f"{rows.name(row)} has a payload that the catalog refuses: {jobs[row]}: {violations[row]}"
        )


# -- queues ------------------------------------------------------------------------------------------


def _queues(rows: WriteRows, blocks: pa.StructArray, options: Options) -> pa.StringArray:
    default = options.queue[0] if options.queue else None
    original = pc.struct_field(blocks, "original_queue")
    queues = pc.coalesce(not_empty(original), rows.queue, not_empty(pa.scalar(default, pa.string())))
    if queues.null_count:
        row = rows.first_name(queues.is_null())
        raise BabelQueueError(f"{row} names no queue: set option 'queue', or fill the column 'queue'")
    return queues


def _stray(rows: WriteRows, options: Options, binding: BaseBinding) -> pa.BooleanArray:
    """Find messages whose block came from another than a dead-letter queue.

    Whoever sends a message may give it a block. It counts where the row's `queue`, from which it was read,
    is the dead-letter queue of the block's `original_queue`; or where the row names no queue.
    """
    own = _own_blocks(rows)
    if not pc.any(own).as_py():
        return own
    original = pc.struct_field(rows.block, "original_queue").to_pylist()
    counts = cache(partial(is_dead_letter_queue, options=options, binding=binding))
    elsewhere = [
        queue is not None and not counts(queue, original or "")
        for queue, original in zip(rows.queue.to_pylist(), original, strict=True)
    ]
    return pc.and_(own, pa.array(elsewhere, pa.bool_()))


def _own_blocks(rows: WriteRows) -> pa.BooleanArray:
    """Return which rows have the very block that is in their body."""
    own = pc.and_(rows.block.is_valid(), rows.body.is_valid())
    if not pc.any(own).as_py():
        return own
    received = rows.received.column("dead_letter")
    own = pc.and_(own, received.is_valid())
    for field in received.type:
        one, other = (pc.struct_field(blocks, field.name) for blocks in (received, rows.block))
        same = pc.fill_null(pc.equal(one, other), False)
        own = pc.and_(own, pc.or_(same, pc.and_(one.is_null(), other.is_null())))
    return own


def _unchanged(rows: WriteRows, stray: pa.BooleanArray) -> pa.BooleanArray:
    """Return which stray rows hold what their body holds, and so are written byte for byte.

    What was masked or edited goes out as its columns say: a block may not bring the body back.
    """
    if not pc.any(stray).as_py():
        return stray
    given = {"job": rows.job, "trace_id": rows.texts("trace_id"), "data": rows.data}
    for name, column in given.items():
        same = pc.equal(column, rows.received.column(name))
        stray = pc.and_(stray, pc.fill_null(same, False))
    return stray


def _targets(
    queues: pa.StringArray, blocks: pa.Array, options: Options, binding: BaseBinding
) -> pa.StringArray:
    """Return the queue that each row goes to: its own, or that one's dead-letter queue."""
    own = queues.dictionary_encode()
    dead = [dead_letter_queue(queue, options, binding) for queue in own.dictionary.to_pylist()]
    return pc.if_else(blocks.is_valid(), pa.array(dead, pa.string()).take(own.indices), queues)


def _check_targets(rows: WriteRows, targets: pa.StringArray, binding: BaseBinding) -> None:
    for name, why in refused_targets(targets, binding).items():
        row = rows.first_name(pc.equal(targets, name))
        raise BabelQueueError(f"{row} cannot be published: {why}")


def refused_targets(names: pa.StringArray, binding: BaseBinding) -> dict[str, str]:
    """Return the names among these to which nothing can be published, with why."""
    refused: dict[str, str] = {}
    for name in names.unique().drop_null().to_pylist():
        try:
            binding.check_target(name)
        except OptionError as error:
            refused[name] = error.text
    return refused


def _with_refused(
    rows: WriteRows, blocks: pa.StructArray, queue: str, binding: BaseBinding
) -> pa.StructArray:
    """Return the blocks, and new ones for the rows that name what is no queue: dead letters of `queue`."""
    refused = refused_targets(rows.queue, binding)
    wanted = pc.and_(blocks.is_null(), pc.is_in(rows.queue, pa.array([*refused], pa.string())))
    if not pc.any(wanted).as_py():
        return blocks
    logger.warning("%d rows become dead letters of '%s': %s", wanted.true_count, queue, [*refused.values()])
    made = dead_letter_blocks(
        pa.repeat(NO_QUEUE, len(rows)),
        original_queues=pa.repeat(queue, len(rows)),
        attempts=pc.fill_null(rows.attempts, 0),
        errors=pa.array([refused.get(name) for name in rows.queue.to_pylist()], pa.string()),
    )
    return pc.if_else(wanted, made, blocks)


# -- headers, keys, delays -------------------------------------------------------------------------------


def _check_headers(rows: WriteRows, binding: BaseBinding) -> None:
    column = rows.column("headers")
    if column is None or binding.capabilities.headers:
        return
    names = {name for pairs in column.to_pylist() for name, _ in pairs or ()}
    if names - binding.kept_headers:
        raise BabelQueueError(f"broker '{binding.name}' keeps no headers: drop the column 'headers'")


def _keys(rows: WriteRows, binding: BaseBinding) -> pa.StringArray:
    keys = rows.texts("key")
    if not binding.capabilities.keys and keys.null_count < len(keys):
        raise BabelQueueError(f"broker '{binding.name}' keeps no keys: drop the column 'key'")
    return keys


def _delays(rows: WriteRows, binding: BaseBinding) -> pa.Int64Array:
    """Milliseconds from now, out of `delay` (seconds, an interval, or text) or `deliver_at`."""
    delays = _relative(rows)
    moments = rows.column("deliver_at")
    if moments is not None:
        now = pa.scalar(int(binding.now() * 1_000_000), pa.int64())
        ahead = pc.subtract(moments_of(moments).cast(pa.int64()), now)
        delays = pc.coalesce(delays, pc.divide(pc.max_element_wise(ahead, 0), 1000))
    return delays


def _check_delays(delays: pa.Int64Array, targets: pa.StringArray, binding: BaseBinding) -> None:
    """Raise `BabelQueueError` for a delay that is longer than its queue allows."""
    if delays.null_count == len(delays):
        return
    wanted = pa.table({"queue": targets, "delay": delays}).group_by("queue").aggregate([("delay", "max")])
    for row in wanted.to_pylist():
        queue, longest = row["queue"], row["delay_max"]
        allowed = binding.longest_delay(queue)
        if allowed is not None and longest is not None and longest > allowed:
            raise BabelQueueError(
                f"broker '{binding.name}' delays a message by {allowed / 1000:g} s at most in '{queue}', "
                f"but a row asks for {longest / 1000:g} s"
            )


def _relative(rows: WriteRows) -> pa.Int64Array:
    column = rows.column("delay")
    if column is None:
        return pa.nulls(len(rows), pa.int64())
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        values = enumerate(column.to_pylist())
        column = pa.array([_seconds(value, rows.name(row)) for row, value in values], pa.float64())
    delays = column.cast(pa.float64())
    invalid = pc.invert(pc.and_(pc.less_equal(delays, _LONGEST_DELAY), pc.greater_equal(delays, 0)))
    if pc.any(invalid).as_py():
        row = pc.index(invalid, True).as_py()
        raise BabelQueueError(
            f"{rows.name(row)} has the delay '{delays[row].as_py():g}', but a delay is a number of "
            f"seconds, from 0 to {_LONGEST_DELAY}"
        )
    return pc.multiply(delays, 1000.0).cast(pa.int64(), safe=False)


def _seconds(value: Any, row: str) -> float | None:
    if value is None:
        return None
    try:
        return value.total_seconds() if isinstance(value, timedelta) else seconds(str(value))
    except (ValueError, OverflowError) as error:
        raise BabelQueueError(f"{row} has the delay '{value}', but a delay is {error}") from None
