"""What is published about a partition: retries, releases, dead letters, and what handlers returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING, BaseBinding
from babelqueue_spark.envelope import DEAD_LETTER_TYPE, dead_letter, set_attempts
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.options import Options
from babelqueue_spark.rows.ids import IdSource
from babelqueue_spark.rows.size_limits import within_bounds
from babelqueue_spark.rows.writing import to_messages
from babelqueue_spark.worker.deciding import Decisions, Output
from babelqueue_spark.worker.ledger import POSTS
from babelqueue_spark.worker.outcomes import Outcome
from babelqueue_spark.worker.rows import Rows

_OUTPUTS = pa.schema(
    [
        ("job", pa.string()),
        ("data", pa.string()),
        ("queue", pa.string()),
        ("trace_id", pa.string()),
        ("headers", OUTGOING.field("headers").type),
        ("key", pa.string()),
        ("delay", pa.float64()),
    ]
)


def posts_of(
    rows: Rows, decisions: Decisions, stamp: IdSource, options: Options, binding: BaseBinding
) -> pa.RecordBatch:
    """The `POSTS` that carry the decisions out.

    Bodies are edited as text: a retry has another count of attempts, a dead letter its block; every other
    byte stays. A message whose handler returned what cannot be published becomes a failed one.
    """
    outputs = _outputs(decisions, stamp, options, binding)
    parts = [_again(rows, decisions, binding), _dead_letters(rows, decisions, options, binding), *outputs]
    [posts] = pa.Table.from_batches(parts).combine_chunks().to_batches() or [parts[0]]
    return posts


def by_target(posts: pa.RecordBatch, options: Options, binding: BaseBinding) -> dict[str, pa.RecordBatch]:
    """`OUTGOING` messages by the queue in which they end, in order.

    Where dead letters go is said by the options of now: one that was wrong can be mended.
    """
    targets: dict[str, list[int]] = {}
    places = zip(posts.column("queue").to_pylist(), posts.column("dead").to_pylist(), strict=True)
    for row, (queue, dead) in enumerate(places):
        targets.setdefault(_dead_letter_queue(queue, options, binding) if dead else queue, []).append(row)
    messages = posts.select(OUTGOING.names)
    return {target: messages.take(pa.array(rows)) for target, rows in targets.items()}


def _dead_letter_queue(queue: str, options: Options, binding: BaseBinding) -> str:
    return options.dead_letter_queue or binding.dead_letter_name(queue, options.dead_letter_style)


def _again(rows: Rows, decisions: Decisions, binding: BaseBinding) -> pa.RecordBatch:
    """Messages that go back to where they came from; a release has the attempts that it had."""
    chosen = decisions.with_outcome(Outcome.RETRIED, Outcome.RELEASED)
    verdicts = [decisions.verdicts[row] for row in chosen]
    delays = [
        binding.retry_delay(
            rows.queues[row],
            int(verdict.delay * 1000),
            verdict.attempts - (verdict.outcome is Outcome.RETRIED),
        )
        for row, verdict in zip(chosen, verdicts, strict=True)
    ]
    attempts = [verdict.attempts if verdict.outcome is Outcome.RETRIED else None for verdict in verdicts]
    bodies = set_attempts(rows.column("body", chosen), pa.array(attempts, pa.int32()))
    return _posts(rows, chosen, bodies, delays, binding, dead=False)


def _dead_letters(rows: Rows, decisions: Decisions, options: Options, binding: BaseBinding) -> pa.RecordBatch:
    chosen = decisions.with_outcome(Outcome.DEAD_LETTERED)
    now = datetime.now(UTC)
    blocks = [
        {
            "reason": verdict.reason,
            "error": verdict.error,
            "exception": verdict.exception,
            "failed_at": now,
            "original_queue": rows.queues[row],
            "attempts": verdict.attempts,
            "lang": "python",
        }
        for row, verdict in ((row, decisions.verdicts[row]) for row in chosen)
    ]
    received = rows.column("body", chosen)
    annotated = pa.array([decisions.verdicts[row].annotated for row in chosen], pa.bool_())
    bodies = pc.if_else(annotated, dead_letter(received, pa.array(blocks, DEAD_LETTER_TYPE)), received)
    posts = _posts(rows, chosen, bodies, [0] * len(chosen), binding, dead=True)
    targets = [_dead_letter_queue(rows.queues[row], options, binding) for row in chosen]
    return within_bounds(posts, received, targets, binding)


def _posts(
    rows: Rows,
    chosen: Sequence[int],
    bodies: pa.Array,
    delays: Sequence[int],
    binding: BaseBinding,
    *,
    dead: bool,
) -> pa.RecordBatch:
    """Copies of messages that were read, with what stood beside them as far as the broker keeps that."""
    can = binding.capabilities
    count = len(chosen)
    columns = {
        "queue": rows.column("queue", chosen),
        "dead": pa.repeat(dead, count),
        "body": bodies,
        "headers": rows.column("headers", chosen)
        if can.headers
        else pa.nulls(count, POSTS.field("headers").type),
        "key": rows.column("key", chosen) if can.keys else pa.nulls(count, pa.string()),
        "delay": pa.array(delays, pa.int64()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in POSTS.names], schema=POSTS)


# -- what handlers returned --------------------------------------------------------------------------------


def _outputs(
    decisions: Decisions, stamp: IdSource, options: Options, binding: BaseBinding
) -> list[pa.RecordBatch]:
    """All at once; where something is wrong, message by message, so that each answers for itself."""
    if not decisions.outputs:
        return []
    try:
        return _encoded(decisions.outputs, 0, stamp, options, binding)
    except BabelQueueError:
        return list(_one_by_one(decisions, stamp, options, binding))


def _one_by_one(
    decisions: Decisions, stamp: IdSource, options: Options, binding: BaseBinding
) -> Iterable[pa.RecordBatch]:
    first = 0
    revoked: dict[int, BabelQueueError] = {}
    for row, group in groupby(decisions.outputs, key=lambda output: output.row):
        outputs = list(group)
        try:
            yield from _encoded(outputs, first, stamp, options, binding)
        except BabelQueueError as error:
            revoked[row] = error
        first += len(outputs)
    decisions.revoke(revoked)


def _encoded(
    outputs: Sequence[Output], first: int, stamp: IdSource, options: Options, binding: BaseBinding
) -> list[pa.RecordBatch]:
    rows = pa.RecordBatch.from_pylist([output.columns for output in outputs], _OUTPUTS)
    return [
        pa.RecordBatch.from_arrays(
            [pa.repeat(queue, len(messages)), pa.repeat(False, len(messages)), *messages.columns],
            schema=POSTS,
        )
        for queue, messages in to_messages(rows, first, stamp, options, binding).items()
    ]
