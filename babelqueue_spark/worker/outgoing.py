"""Build the messages that carry decisions out: retries, releases, dead letters, handlers' outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import OUTGOING, BaseBinding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.carriers import carried_headers, carrier_of
from babelqueue_spark.connector.rows.dead_letters import dead_letter_blocks, dead_letter_queue
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.size_limits import within_bounds
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.envelope import META_TYPE
from babelqueue_spark.errors import BabelQueueError, BrokerError, MessageTooLargeError
from babelqueue_spark.forms import Parts
from babelqueue_spark.worker.deciding import Decisions, Output
from babelqueue_spark.worker.decisions import OUTGOING_MESSAGES
from babelqueue_spark.worker.destinations import Destinations
from babelqueue_spark.worker.messages import CANCELLED
from babelqueue_spark.worker.outcomes import Outcome
from babelqueue_spark.worker.rows import Rows

_LONGEST_DELAY = 1e9
"""Seconds, thirty years: times behind them do not fit into what brokers keep."""
_OUTPUTS = pa.schema(
    [
        ("job", pa.string()),
        ("data", pa.string()),
        ("queue", pa.string()),
        ("trace_id", pa.string()),
        ("headers", OUTGOING.field("headers").type),
        ("key", pa.string()),
        ("delay", pa.float64()),
        ("meta", pa.struct([META_TYPE.field("extra")])),
    ]
)


def outgoing_messages(
    rows: Rows,
    decisions: Decisions,
    outputs: Sequence[pa.RecordBatch],
    options: Options,
    binding: BaseBinding,
) -> pa.RecordBatch:
    """Build the `OUTGOING_MESSAGES` that carry the decisions out: retries, releases, dead letters, outputs.

    Bodies are edited as text: a retry has another count of attempts, a dead letter its block; every other
    byte stays. `outputs` come from `encode_outputs`.
    """
    parts = [
        _returning(rows, decisions, options, binding),
        _dead_letters(rows, decisions, options, binding),
        *outputs,
    ]
    [messages] = pa.Table.from_batches(parts).combine_chunks().to_batches() or [parts[0]]
    return messages


def by_target(messages: pa.RecordBatch, options: Options, binding: BaseBinding) -> dict[str, pa.RecordBatch]:
    """Split `OUTGOING_MESSAGES` by the queue where they end, in order; gives `OUTGOING`.

    The dead-letter queue comes from today's options, not from the log, so that a wrong name can be
    corrected between attempts.
    """
    targets: dict[str, list[int]] = {}
    places = zip(messages.column("queue").to_pylist(), messages.column("dead").to_pylist(), strict=True)
    for row, (queue, dead) in enumerate(places):
        target = dead_letter_queue(queue, options, binding) if dead else queue
        targets.setdefault(target, []).append(row)
    outgoing = messages.select(OUTGOING.names)
    return {target: outgoing.take(pa.array(rows)) for target, rows in targets.items()}


def _returning(rows: Rows, decisions: Decisions, options: Options, binding: BaseBinding) -> pa.RecordBatch:
    """Return the messages that go back to their queue; a release keeps its attempts."""
    chosen = decisions.rows_with(Outcome.RETRIED, Outcome.RELEASED)
    verdicts = [decisions.verdicts[row] for row in chosen]
    delays = [
        binding.retry_delay(
            rows.queues[row],
            int(min(verdict.delay, _LONGEST_DELAY) * 1000),
            verdict.attempts - (verdict.outcome is Outcome.RETRIED),
        )
        for row, verdict in zip(chosen, verdicts, strict=True)
    ]
    attempts = [verdict.attempts if verdict.outcome is Outcome.RETRIED else None for verdict in verdicts]
    read, counts = rows.parts(chosen), pa.array(attempts, pa.int32())
    parts = options.form.retried(read, counts, carrier_of(binding))
    return _copies(rows, chosen, parts, delays, binding, dead=False)


def _dead_letters(rows: Rows, decisions: Decisions, options: Options, binding: BaseBinding) -> pa.RecordBatch:
    chosen = decisions.rows_with(Outcome.DEAD_LETTERED)
    verdicts = [decisions.verdicts[row] for row in chosen]
    blocks = dead_letter_blocks(
        pa.array([verdict.reason for verdict in verdicts], pa.string()),
        original_queues=rows.column("queue", chosen),
        attempts=pa.array([verdict.attempts for verdict in verdicts], pa.int32()),
        errors=pa.array([verdict.error for verdict in verdicts], pa.string()),
        exceptions=pa.array([verdict.exception for verdict in verdicts], pa.string()),
    )
    read = rows.parts(chosen)
    received = read.column("body")
    annotated = pa.array([verdict.annotated for verdict in verdicts], pa.bool_())
    found = options.form.dead_lettered(read, blocks, carrier_of(binding))
    parts = found._replace(bodies=pc.if_else(annotated, found.bodies, received))
    messages = _copies(rows, chosen, parts, [0] * len(chosen), binding, dead=True)
    targets = [dead_letter_queue(rows.queues[row], options, binding) for row in chosen]
    return within_bounds(messages, received, targets, binding, options.form)


def _copies(
    rows: Rows,
    chosen: Sequence[int],
    parts: Parts,
    delays: Sequence[int],
    binding: BaseBinding,
    *,
    dead: bool,
) -> pa.RecordBatch:
    """Copy messages that were read, with headers and keys where the broker keeps them."""
    can = binding.capabilities
    count = len(chosen)
    columns = {
        "queue": rows.column("queue", chosen),
        "dead": pa.repeat(dead, count),
        "body": parts.bodies,
        "headers": carried_headers(parts.headers, binding),
        "key": rows.column("key", chosen) if can.keys else pa.nulls(count, pa.string()),
        "delay": pa.array(delays, pa.int64()),
        "job_id": pa.nulls(count, pa.string()),
        "send_at": pa.nulls(count, pa.int64()),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in OUTGOING_MESSAGES.names], schema=OUTGOING_MESSAGES
    )


# -- what handlers returned --------------------------------------------------------------------------------


def encode_outputs(
    outputs: Sequence[Output], ids: IdSource, destinations: Destinations
) -> tuple[list[pa.RecordBatch], dict[int, BabelQueueError]]:
    """Encode what handlers returned, as `OUTGOING_MESSAGES`; row → error for what cannot be published.

    All are encoded at once. Where that fails, they are encoded row by row: each row answers for itself.
    """
    if not outputs:
        return [], {}
    try:
        return _encoded(outputs, 0, ids, destinations), {}
    except BabelQueueError:
        return _encoded_by_row(outputs, ids, destinations)


def check_outputs(outputs: Sequence[Mapping[str, Any]], destinations: Destinations) -> None:
    """Raise `BabelQueueError` where one of these columns of a write cannot be published.

    That it is too large, or that its queue is missing, is not known of each broker before it is published.
    """
    binding = destinations.binding
    sent, scheduled = _split(outputs, destinations)
    found = [*sent, *(each for each in scheduled if CANCELLED not in each)]
    for queue, messages in _messages(found, 0, IdSource(""), destinations).items():
        try:
            refused = binding.too_large(queue, messages.select(OUTGOING.names))
        except BrokerError:
            continue
        if refused:
            raise MessageTooLargeError(f"{binding.title}: queue '{queue}': a message is larger than it takes")


def _messages(
    outputs: Sequence[Mapping[str, Any]], first: int, ids: IdSource, destinations: Destinations
) -> dict[str, pa.RecordBatch]:
    """Encode columns of a write: queue → `OUTGOING`."""
    if not outputs:
        return {}
    found = [
        {
            **columns,
            "queue": destinations.queue_of(columns),
            "headers": [*dict(headers).items()] if (headers := columns.get("headers")) else None,
            "meta": {"extra": [*columns.get("extra", {}).items()]},
        }
        for columns in outputs
    ]
    rows = pa.RecordBatch.from_pylist(found, _OUTPUTS)
    return to_messages(rows, first, ids, destinations.options, destinations.binding)


def _encoded_by_row(
    outputs: Sequence[Output], ids: IdSource, destinations: Destinations
) -> tuple[list[pa.RecordBatch], dict[int, BabelQueueError]]:
    batches: list[pa.RecordBatch] = []
    failures: dict[int, BabelQueueError] = {}
    first = 0
    for row, group in groupby(outputs, key=lambda output: output.row):
        returned = list(group)
        try:
            batches += _encoded(returned, first, ids, destinations)
        except BabelQueueError as error:
            failures[row] = error
        first += len(returned)
    return batches, failures


def _encoded(
    outputs: Sequence[Output], first: int, ids: IdSource, destinations: Destinations
) -> list[pa.RecordBatch]:
    sent, scheduled = _split([output.columns for output in outputs], destinations)
    batches = [
        pa.RecordBatch.from_arrays(
            [
                pa.repeat(queue, len(messages)),
                pa.repeat(False, len(messages)),
                *messages.select(OUTGOING.names).columns,
                pa.nulls(len(messages), pa.string()),
                pa.nulls(len(messages), pa.int64()),
            ],
            schema=OUTGOING_MESSAGES,
        )
        for queue, messages in _messages(sent, first, ids, destinations).items()
    ]
    return [*batches, _jobs(scheduled, first, ids, destinations)] if scheduled else batches


def _split(
    outputs: Sequence[Mapping[str, Any]], destinations: Destinations
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return what is sent now, and what is for the schedule."""
    parts: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = [], []
    for output in outputs:
        parts[destinations.is_scheduled(output)].append(output)
    return parts


def _jobs(
    scheduled: Sequence[Mapping[str, Any]], first: int, ids: IdSource, destinations: Destinations
) -> pa.RecordBatch:
    """Encode what is for the schedule, in its order; jobs without a name get one."""
    stored = [each for each in scheduled if CANCELLED not in each]
    encoded = {
        queue: iter(messages.select(OUTGOING.names).to_pylist())
        for queue, messages in _messages(stored, first, ids, destinations).items()
    }
    rows: list[dict[str, Any]] = []
    for each, new in zip(scheduled, ids.uuids("job_id", first, len(scheduled)).to_pylist(), strict=True):
        if CANCELLED in each:
            rows.append({"dead": False, "job_id": each[CANCELLED]})
            continue
        queue = destinations.queue_of(each)
        job = {"queue": queue, "dead": False, "job_id": each["job_id"] or new, "send_at": each["send_at"]}
        rows.append({**next(encoded[queue]), **job})
    return pa.RecordBatch.from_pylist(rows, OUTGOING_MESSAGES)
