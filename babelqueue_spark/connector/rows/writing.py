"""Turn rows of a DataFrame into envelopes ready to publish."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING, BaseBinding
from babelqueue_spark.bindings.batches import ENVELOPE_COLUMN
from babelqueue_spark.bindings.options import seconds
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.bodies import (
    attempts_of,
    blocks_of,
    bodies_and_envelopes,
    child_of,
    column_of,
    data_of,
    moments_of,
    not_empty,
    received_of,
    texts_of,
)
from babelqueue_spark.connector.rows.dead_letters import (
    dead_letter_blocks,
    dead_letter_queue,
    is_dead_letter_queue,
)
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.languages import large_numbers_as_texts, warn_of_classes
from babelqueue_spark.connector.rows.size_limits import within_bounds
from babelqueue_spark.envelope import decode
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

    Returns:
        queue → `OUTGOING` batch, with the column `ENVELOPE_COLUMN` where all bodies were made here.

    Raises:
        BabelQueueError: a row lacks what it needs, or the broker cannot carry it; names the row.
    """
    if options.large_numbers == "string":
        rows = _with_large_numbers_as_texts(rows, first_row)
    warn_of_classes(pc.coalesce(texts_of(rows, "job"), texts_of(rows, "urn")))
    blocks = blocks_of(rows)
    stray = _stray(rows, blocks, options, binding)
    blocks = pc.if_else(stray, None, blocks)
    if dead_letters and options.queue:
        blocks = _with_refused(blocks, rows, first_row, options.queue[0], binding)
    queues = _queues(rows, blocks, options, first_row)
    unchanged = _as_received(rows, stray)
    found, envelopes = bodies_and_envelopes(rows, blocks, queues, first_row, ids, pc.invert(unchanged))
    found = pc.if_else(unchanged, received_of(rows), found)
    if options.catalog is not None:
        _check_payloads(found, blocks.is_null(), options.catalog, first_row)
    targets = _targets(queues, blocks, options, binding)
    _check_targets(targets, first_row, binding)
    delays = _delays(rows, first_row, binding)
    _check_delays(delays, targets, binding)
    outgoing = pa.RecordBatch.from_arrays(
        [found, _headers(rows, binding), _keys(rows, binding), delays], schema=OUTGOING
    )
    if envelopes is not None:
        outgoing = outgoing.append_column(ENVELOPE_COLUMN, envelopes)
    if "body" in rows.schema.names:
        received = pc.if_else(blocks.is_valid(), received_of(rows), None)
        outgoing = within_bounds(outgoing, received, targets.to_pylist(), binding)
    names = targets.unique().to_pylist()
    if len(names) == 1:
        return {names[0]: outgoing}
    return {name: outgoing.filter(pc.equal(targets, name)) for name in names}


def _with_large_numbers_as_texts(rows: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    texts = large_numbers_as_texts(data_of(rows, first_row))
    index = rows.schema.get_field_index("data")
    return rows if index < 0 else rows.set_column(index, "data", texts)


def _check_payloads(
    bodies: pa.BinaryArray, judged: pa.BooleanArray, catalog: Registry, first_row: int
) -> None:
    """Raise for the first payload that has a violation; dead letters have theirs already."""
    envelopes = decode(bodies)
    jobs = pc.if_else(judged, envelopes.column("job"), None)
    violations = catalog.violations(jobs, envelopes.column("data"))
    if violations.null_count < len(violations):
        row = pc.index(violations.is_valid(), True).as_py()
        raise InvalidPayloadError(
            f"row {first_row + row} has a payload that the catalog refuses: {jobs[row]}: {violations[row]}"
        )


# -- queues ------------------------------------------------------------------------------------------


def _queues(rows: pa.RecordBatch, blocks: pa.Array, options: Options, first_row: int) -> pa.StringArray:
    default = options.queue[0] if options.queue else None
    queues = pc.coalesce(
        not_empty(child_of(blocks, "original_queue", pa.string())),
        not_empty(texts_of(rows, "queue")),
        not_empty(pa.scalar(default, pa.string())),
    )
    if queues.null_count:
        row = first_row + pc.index(queues.is_null(), True).as_py()
        raise BabelQueueError(f"row {row} names no queue: set option 'queue', or fill the column 'queue'")
    return queues


def _stray(
    rows: pa.RecordBatch, blocks: pa.StructArray, options: Options, binding: BaseBinding
) -> pa.BooleanArray:
    """Find messages whose block came from another than a dead-letter queue.

    Whoever sends a message may give it a block. It counts where the row's `queue`, from which it was read,
    is the dead-letter queue of the block's `original_queue`; or where the row names no queue.
    """
    none = pa.repeat(False, rows.num_rows)
    own = _own_blocks(rows, blocks)
    if not pc.any(own).as_py():
        return none
    places = zip(
        not_empty(texts_of(rows, "queue")).to_pylist(),
        child_of(blocks, "original_queue", pa.string()).to_pylist(),
        strict=True,
    )
    counts = cache(partial(is_dead_letter_queue, options=options, binding=binding))
    elsewhere = [queue is not None and not counts(queue, original or "") for queue, original in places]
    return pc.and_(own, pa.array(elsewhere, pa.bool_()))


def _as_received(rows: pa.RecordBatch, stray: pa.BooleanArray) -> pa.BooleanArray:
    """Return which stray rows hold what their body holds, and so are written byte for byte.

    What was masked or edited goes out as its columns say: a block may not bring the body back.
    """
    if not pc.any(stray).as_py():
        return stray
    received = decode(pc.if_else(stray, received_of(rows), None))
    same = stray
    for name in ("job", "trace_id", "data"):
        given = data_of(rows, 0) if name == "data" else texts_of(rows, name)
        same = pc.and_(same, pc.fill_null(pc.equal(given, received.column(name)), False))
    return same


def _own_blocks(rows: pa.RecordBatch, blocks: pa.StructArray) -> pa.BooleanArray:
    """Return which rows have the very block that is in their body."""
    there = pc.and_(blocks.is_valid(), received_of(rows).is_valid())
    if not pc.any(there).as_py():
        return there
    found = decode(pc.if_else(there, received_of(rows), None)).column("dead_letter")
    pairs = zip(found.to_pylist(), blocks.to_pylist(), strict=True)
    return pc.and_(there, pa.array([own == block for own, block in pairs], pa.bool_()))


def _targets(
    queues: pa.StringArray, blocks: pa.Array, options: Options, binding: BaseBinding
) -> pa.StringArray:
    """Return the queue that each row goes to: its own, or that one's dead-letter queue."""
    own = queues.dictionary_encode()
    dead = [dead_letter_queue(queue, options, binding) for queue in own.dictionary.to_pylist()]
    return pc.if_else(blocks.is_valid(), pa.array(dead, pa.string()).take(own.indices), queues)


def _check_targets(targets: pa.StringArray, first_row: int, binding: BaseBinding) -> None:
    for name, why in refused_targets(targets, binding).items():
        row = first_row + pc.index(targets, name).as_py()
        raise BabelQueueError(f"row {row} cannot be published: {why}")


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
    blocks: pa.StructArray, rows: pa.RecordBatch, first_row: int, queue: str, binding: BaseBinding
) -> pa.StructArray:
    """Return the blocks, and new ones for the rows that name what is no queue: dead letters of `queue`."""
    names = not_empty(texts_of(rows, "queue"))
    refused = refused_targets(names, binding)
    wanted = pc.and_(blocks.is_null(), pc.is_in(names, pa.array([*refused], pa.string())))
    if not pc.any(wanted).as_py():
        return blocks
    logger.warning("%d rows become dead letters of '%s': %s", wanted.true_count, queue, [*refused.values()])
    count = rows.num_rows
    made = dead_letter_blocks(
        pa.repeat(NO_QUEUE, count),
        original_queues=pa.repeat(queue, count),
        attempts=pc.fill_null(attempts_of(rows, first_row), 0),
        errors=pa.array([refused.get(name) for name in names.to_pylist()], pa.string()),
    )
    given = [child_of(blocks, field.name, field.type) for field in made.type]
    kept = pa.StructArray.from_arrays(given, fields=list(made.type), mask=blocks.is_null())
    return pc.if_else(wanted, made, kept)


# -- headers, keys, delays -------------------------------------------------------------------------------


def _headers(rows: pa.RecordBatch, binding: BaseBinding) -> pa.MapArray:
    kind = OUTGOING.field("headers").type
    column = column_of(rows, "headers")
    if column is None:
        return pa.nulls(rows.num_rows, kind)
    if not binding.capabilities.headers and any(column.to_pylist()):
        raise BabelQueueError(f"broker '{binding.name}' keeps no headers: drop the column 'headers'")
    return column.cast(kind)


def _keys(rows: pa.RecordBatch, binding: BaseBinding) -> pa.StringArray:
    keys = texts_of(rows, "key")
    if not binding.capabilities.keys and keys.null_count < len(keys):
        raise BabelQueueError(f"broker '{binding.name}' keeps no keys: drop the column 'key'")
    return keys


def _delays(rows: pa.RecordBatch, first_row: int, binding: BaseBinding) -> pa.Int64Array:
    """Milliseconds from now, out of `delay` (seconds, an interval, or text) or `deliver_at`."""
    delays = _relative(column_of(rows, "delay"), rows.num_rows, first_row)
    moments = column_of(rows, "deliver_at")
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


def _relative(column: pa.Array | None, count: int, first_row: int) -> pa.Int64Array:
    if column is None:
        return pa.nulls(count, pa.int64())
    if (
        pa.types.is_floating(column.type)
        or pa.types.is_integer(column.type)
        or pa.types.is_decimal(column.type)
    ):
        seconds_of = column.cast(pa.float64())
        _check_seconds(seconds_of, first_row)
        return pc.multiply(seconds_of, 1000.0).cast(pa.int64(), safe=False)
    values = enumerate(column.to_pylist(), first_row)
    return pa.array([_milliseconds(value, row) for row, value in values], pa.int64())


def _check_seconds(delays: pa.DoubleArray, first_row: int) -> None:
    valid = pc.and_(pc.less_equal(delays, _LONGEST_DELAY), pc.greater_equal(delays, 0))
    row = pc.index(valid, False).as_py()
    if row >= 0:
        raise BabelQueueError(
            f"row {first_row + row} has the delay '{delays[row].as_py():g}', but a delay is a number of "
            f"seconds, from 0 to {_LONGEST_DELAY}"
        )


def _milliseconds(value: Any, row: int) -> int | None:
    if value is None:
        return None
    try:
        found = value.total_seconds() if isinstance(value, timedelta) else seconds(str(value))
    except (ValueError, OverflowError) as error:
        raise BabelQueueError(f"row {row} has the delay '{value}', but a delay is {error}") from None
    _check_seconds(pa.array([found], pa.float64()), row)
    return int(found * 1000)
