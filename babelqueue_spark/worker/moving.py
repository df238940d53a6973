"""Take messages out of a dead-letter queue: what is chosen goes, all else is released."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings import OUTGOING, Binding
from babelqueue_spark.bindings.batches import HEADERS
from babelqueue_spark.envelope import strip_dead_letter, validate
from babelqueue_spark.errors import OptionError
from babelqueue_spark.options import Options
from babelqueue_spark.publishing import publish_parts
from babelqueue_spark.rows.reading import SCHEMA, to_rows
from babelqueue_spark.worker.messages import BYPASS_HEADER

_BATCH_BYTES = 64 << 20

Select = Callable[[pa.RecordBatch, pa.RecordBatch], set[int]]
"""Takes a `DELIVERIES` batch and the columns of a read of it; returns the numbers of the selected rows."""

Held = tuple[pa.RecordBatch, set[int]]
"""A `DELIVERIES` batch, and the rows of it that are released at the end."""


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
class Plan:
    """What is wanted; see `redrive`. `done` tells that nothing more will be selected."""

    queue: str
    select: Select
    to: str | None = None
    limit: int | None = None
    poison: bool = False
    bypass: bool = False
    dry_run: bool = False
    done: Callable[[], bool] = lambda: False


def move(given: Options, plan: Plan) -> Redriven:
    """Do what `redrive` promises."""
    if plan.to == plan.queue:
        raise OptionError(f"queue '{plan.queue}' cannot be redriven to itself: name another one")
    result = Redriven()
    with given.queue_binding() as binding:
        if plan.bypass and not binding.capabilities.headers:
            raise OptionError(f"broker '{binding.name}' keeps no headers: redrive without bypass")
        browsing = plan.dry_run and binding.capabilities.browse != "none"
        with held(binding, plan.queue, browsing=browsing) as batches:
            for batch, stay in batches:
                room = len(batch) if plan.limit is None else min(len(batch), plan.limit - len(result.moves))
                chosen = _chosen(batch, plan, room, binding, result)
                if not plan.dry_run:
                    for rows in _moved(batch, chosen, plan, binding):
                        stay -= set(rows)
                if len(result.moves) == plan.limit or plan.done():
                    break
    return result


@contextmanager
def held(binding: Binding, queue: str, *, browsing: bool = False) -> Iterator[Iterator[Held]]:
    """What is in the queue at the start, batch by batch; at the end, the rows that stay are released.

    With `browsing`, nothing is claimed, and nothing released.
    """
    with ExitStack() as claims:
        yield _held(binding, queue, claims, browsing)


def _held(binding: Binding, queue: str, claims: ExitStack, browsing: bool) -> Iterator[Held]:
    for batch in binding.browse(queue) if browsing else _taken(binding, queue):
        stay = set(range(len(batch)))
        if not browsing:
            claims.callback(_release, binding, queue, batch, stay)
        yield batch, stay


def _release(binding: Binding, queue: str, batch: pa.RecordBatch, rows: set[int]) -> None:
    binding.release(queue, batch.take(pa.array(sorted(rows), pa.int64())))


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
    batch: pa.RecordBatch, plan: Plan, room: int, binding: Binding, result: Redriven
) -> dict[int, str]:
    """Choose the rows that move, at most `room`, each with its target; count the others."""
    rows = to_rows(batch, plan.queue, binding, SCHEMA, allow_list_data=False)
    selected = plan.select(batch, rows)
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


def _is_fresh(since: datetime | None, window: float) -> bool:
    """Tell whether the broker may still know the id, and would drop the message as a duplicate."""
    if not window:
        return False
    return since is None or (datetime.now(UTC) - since).total_seconds() < window


def _move_of(envelope: dict[str, Any], target: str) -> Move:
    meta, block = envelope["meta"] or {}, envelope["dead_letter"] or {}
    return Move(meta.get("id"), envelope["trace_id"], envelope["job"], block.get("reason"), target)


def _moved(
    batch: pa.RecordBatch, chosen: Mapping[int, str], plan: Plan, binding: Binding
) -> Iterator[list[int]]:
    """Publish, then acknowledge, chunk after chunk; yields the rows of each chunk that was moved."""
    for target in dict.fromkeys(chosen.values()):
        rows = [row for row, its in chosen.items() if its == target]
        deliveries = batch.take(pa.array(rows))
        for part, _ in publish_parts(binding, target, _outgoing(deliveries, plan, binding)):
            binding.acknowledge(plan.queue, deliveries.slice(part.start, len(part)))
            yield rows[part.start : part.stop]


def _outgoing(deliveries: pa.RecordBatch, plan: Plan, binding: Binding) -> pa.RecordBatch:
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
