"""Move dead letters back to the queue that they came from, or to another one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.bindings import OUTGOING, Binding
from babelqueue_spark.bindings.batches import HEADERS
from babelqueue_spark.envelope import strip_dead_letter, validate
from babelqueue_spark.errors import OptionError
from babelqueue_spark.options import read_options
from babelqueue_spark.publishing import publish_parts
from babelqueue_spark.rows.reading import SCHEMA, to_rows
from babelqueue_spark.worker.messages import BYPASS_HEADER

_BATCH_BYTES = 64 << 20
_ROW = "redrive_row"


@dataclass(frozen=True)
class Move:
    """One message that is redriven.

    Attributes:
        id, trace_id, urn: of its envelope; None where a body that was wrapped as `raw` hides them.
        reason: why it is a dead letter.
        to: the queue it goes to.
    """

    id: str | None
    trace_id: str | None
    urn: str | None
    reason: str | None
    to: str


@dataclass
class Redriven:
    """The result of a redrive, or of a dry run.

    Attributes:
        moves: the messages that were moved.
        kept: why others stay → messages: `not selected`, `not acceptable`, `no queue`, `too fresh`.
    """

    moves: list[Move] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Plan:
    """What is wanted; see `redrive`."""

    spark: SparkSession
    queue: str
    to: str | None
    where: Column | None
    poison: bool
    bypass: bool


def redrive(
    spark: SparkSession,
    options: Mapping[str, str],
    queue: str,
    *,
    to: str | None = None,
    where: Column | str | None = None,
    limit: int | None = None,
    poison: bool = False,
    bypass: bool = False,
    dry_run: bool = False,
) -> Redriven:
    """Move dead letters back to their queues, without their block and with no attempts.

    A message is published before it leaves the dead-letter queue: a crash in between leaves it in both, under
    the same `meta.id`. It runs on the driver, and moves only what is in the queue when it starts.

    Args:
        spark: evaluates `where`.
        options: of the connector's reads, by name.
        queue: the dead-letter queue.
        to: where they go; by default `dead_letter.original_queue`, or else `meta.queue`.
        where: a condition on the columns of a read, such as `dead_letter.reason = 'failed'`.
        limit: most messages to move.
        poison: also move messages that no reader accepts, even without their block.
        bypass: mark them with the header `bq-replay-bypass`, which asks handlers for no effects outside.
        dry_run: move nothing, and return what would be moved.

    Raises:
        OptionError: the broker keeps no headers for `bypass`, messages would go round in circles, or claims
            would lapse before the end.
        BrokerError: the broker is out of reach, or a target refuses a message; earlier moves stay.
    """
    given = read_options({**options, "queue": queue})
    if to == queue:
        raise OptionError(f"queue '{queue}' cannot be redriven to itself: name another one")
    condition = F.expr(where) if isinstance(where, str) else where
    plan = _Plan(spark, queue, to, condition, poison, bypass)
    result = Redriven()
    with given.queue_binding() as binding, ExitStack() as held:
        if bypass and not binding.capabilities.headers:
            raise OptionError(f"broker '{binding.name}' keeps no headers: redrive without bypass")
        browsing = dry_run and binding.capabilities.browse != "none"
        for batch in binding.browse(queue) if browsing else _taken(binding, queue):
            room = len(batch) if limit is None else min(len(batch), limit - len(result.moves))
            chosen = _chosen(batch, plan, room, binding, result)
            stay = set(range(len(batch)))
            if not browsing:
                held.callback(_give_back, binding, queue, batch, stay)
            if not dry_run:
                for rows in _moved(batch, chosen, plan, binding):
                    stay -= set(rows)
            if len(result.moves) == limit:
                break
    return result


def _taken(binding: Binding, queue: str) -> Iterator[pa.RecordBatch]:
    """Claim what is there at the start; what stays is held until the end, so that it is claimed only once."""
    if not binding.claimable(queue):
        yield from binding.browse(queue)
        return
    left = binding.backlog(queue)
    started = time.monotonic()
    while left > 0:
        if binding.lease and time.monotonic() - started > binding.lease / 2:
            raise OptionError(
                f"queue '{queue}': claims last {binding.lease:g} s, and what stays there would be claimed "
                "again while others are read: raise visibilityTimeout (on Service Bus the queue's lock "
                "duration), or set a limit"
            )
        batch = binding.claim(queue, min(left, binding.capabilities.claim_batch), _BATCH_BYTES)
        if not batch.num_rows:
            return
        left -= batch.num_rows
        yield batch


def _chosen(
    batch: pa.RecordBatch, plan: _Plan, room: int, binding: Binding, result: Redriven
) -> dict[int, str]:
    """Choose the rows that move, at most `room`, each with its target; count the others."""
    rows = to_rows(batch, plan.queue, binding, SCHEMA, allow_list_data=False)
    selected = _selected(rows, plan)
    stripped = validate(strip_dead_letter(rows.column("body"))).to_pylist()
    chosen: dict[int, str] = {}
    columns = rows.select(["job", "trace_id", "meta", "dead_letter", "delivery"]).to_pylist()
    for row, (refused, envelope) in enumerate(zip(stripped, columns, strict=True)):
        block = envelope["dead_letter"] or {}
        target = plan.to or block.get("original_queue") or (envelope["meta"] or {}).get("queue")
        if row not in selected:
            result.kept["not selected"] += 1
        elif refused is not None and not plan.poison:
            result.kept["not acceptable"] += 1
        elif not target or target == plan.queue:
            result.kept["no queue"] += 1
        elif _is_fresh(
            block.get("failed_at") or envelope["delivery"]["enqueued_at"], binding.duplicate_window(target)
        ):
            result.kept["too fresh"] += 1
        elif len(chosen) < room:
            chosen[row] = target
            result.moves.append(_move_of(envelope, target))
    return chosen


def _selected(rows: pa.RecordBatch, plan: _Plan) -> set[int]:
    numbers = range(rows.num_rows)
    if plan.where is None:
        return set(numbers)
    numbered = pa.table([*rows.columns, pa.array(numbers)], names=[*rows.schema.names, _ROW])
    frame = plan.spark.createDataFrame(numbered)
    return {found[0] for found in frame.where(plan.where).select(_ROW).collect()}


def _is_fresh(since: datetime | None, window: float) -> bool:
    """Tell whether the broker may still know the id, and would drop the message as a duplicate."""
    if not window:
        return False
    return since is None or (datetime.now(UTC) - since).total_seconds() < window


def _move_of(envelope: dict[str, Any], target: str) -> Move:
    meta, block = envelope["meta"] or {}, envelope["dead_letter"] or {}
    return Move(meta.get("id"), envelope["trace_id"], envelope["job"], block.get("reason"), target)


def _moved(
    batch: pa.RecordBatch, chosen: Mapping[int, str], plan: _Plan, binding: Binding
) -> Iterator[list[int]]:
    """Publish, then acknowledge, chunk after chunk; yields the rows of each chunk that was moved."""
    for target in dict.fromkeys(chosen.values()):
        rows = [row for row, its in chosen.items() if its == target]
        deliveries = batch.take(pa.array(rows))
        for part, _ in publish_parts(binding, target, _outgoing(deliveries, plan, binding)):
            binding.acknowledge(plan.queue, deliveries.slice(part.start, len(part)))
            yield rows[part.start : part.stop]


def _give_back(binding: Binding, queue: str, batch: pa.RecordBatch, rows: set[int]) -> None:
    binding.release(queue, batch.take(pa.array(sorted(rows), pa.int64())))


def _outgoing(deliveries: pa.RecordBatch, plan: _Plan, binding: Binding) -> pa.RecordBatch:
    can = binding.capabilities
    count = deliveries.num_rows
    headers = deliveries.column("headers") if can.headers else pa.nulls(count, HEADERS)
    if plan.bypass:
        mark = (BYPASS_HEADER, "1")
        given = ([pair for pair in pairs or () if pair[0] != mark[0]] for pairs in headers.to_pylist())
        headers = pa.array([[*pairs, mark] for pairs in given], HEADERS)
    keys = deliveries.column("key") if can.keys else pa.nulls(count, pa.string())
    bodies = strip_dead_letter(deliveries.column("body"))
    columns = [bodies, headers, keys, pa.nulls(count, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=OUTGOING)
