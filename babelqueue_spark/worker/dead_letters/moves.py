"""Take messages out of a dead-letter queue: what is chosen goes, all else is released."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Self

import pyarrow as pa

from babelqueue_spark.bindings import OUTGOING, Binding
from babelqueue_spark.bindings.batches import HEADERS
from babelqueue_spark.connector.message_log import MessageLog, message_log
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.publishing import publish_or_singly
from babelqueue_spark.connector.rows.carriers import carried_headers
from babelqueue_spark.connector.rows.dead_letters import is_dead_letter_queue
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerFullError,
    BrokerUnreachableError,
    MessageTooLargeError,
    OptionError,
    QueuesFailedError,
)
from babelqueue_spark.forms import Form
from babelqueue_spark.worker.messages import BYPASS_HEADER

_BATCH_BYTES = 64 << 20
_MOST_SHOWN = 5
_OF_ALL_QUEUES = (BrokerUnreachableError, BrokerAuthenticationError, BrokerFullError)


class Selection(ABC):
    """Says which messages are wanted."""

    @abstractmethod
    def rows(self, deliveries: pa.RecordBatch, columns: pa.RecordBatch) -> set[int]:
        """Return the numbers of the selected rows of a `DELIVERIES` batch; `columns` are a read's."""

    def is_done(self) -> bool:
        """Return whether it is known that nothing more will be selected."""
        return False


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
        kept: why others stay → messages: `not selected`, `not acceptable`, `no queue`, `too fresh`,
            `too large`.
    """

    moves: list[Move] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Plan:
    """What is wanted; see `redrive`."""

    queue: str
    selection: Selection
    to: str | None = None
    limit: int | None = None
    poison: bool = False
    bypass: bool = False
    dry_run: bool = False


def move(given: Options, plan: Plan) -> Redriven:
    """Do what `redrive` promises."""
    if plan.to == plan.queue:
        raise OptionError(f"queue '{plan.queue}' cannot be redriven to itself: name another one")
    result = Redriven()
    with given.queue_binding() as binding, moving_log(given, binding) as lines:
        if plan.bypass and not binding.capabilities.headers:
            raise OptionError(f"broker '{binding.name}' keeps no headers: redrive without bypass")
        if plan.to is not None:
            binding.check_target(plan.to)
        if plan.selection.is_done():
            return result
        if plan.dry_run and binding.capabilities.browse != "none":
            for deliveries in binding.browse(plan.queue):
                lines.write_all("browsed", deliveries, plan.queue)
                chosen = _choose(deliveries, plan, binding, given, result)
                result.moves += _within_limit(chosen, plan, result).values()
                if _is_done(plan, result):
                    break
            return result
        mover = _Mover(plan, binding, given.form, lines, result)
        with Claims(binding, plan.queue, lines) as claims:
            for claim in claims:
                chosen = _choose(claim.deliveries, plan, binding, given, result)
                if plan.dry_run:
                    result.moves += _within_limit(chosen, plan, result).values()
                else:
                    mover.move(claim, chosen)
                if _is_done(plan, result):
                    break
        mover.check()
    return result


def moving_log(given: Options, binding: Binding) -> AbstractContextManager[MessageLog]:
    """Open the message log of messages that are taken out of a queue."""
    return message_log(given.message_log, f"moved-{uuid.uuid4().hex}", binding, given.catalog)


class Claims:
    """What is in a queue at the start, claimed batch by batch; at the end, what is still held is released.

    The last batch goes back first, so that a queue which takes messages back at its head keeps its order.
    """

    def __init__(self, binding: Binding, queue: str, lines: MessageLog) -> None:
        self._binding = binding
        self._queue = queue
        self._lines = lines
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def __iter__(self) -> Iterator[Claim]:
        for deliveries in self._taken():
            claim = Claim(self._binding, self._queue, deliveries, self._lines)
            self._opened.callback(claim.release)
            yield claim

    def _taken(self) -> Iterator[pa.RecordBatch]:
        """Yield the chosen claims; hold what stays until the end, so that it is claimed only once."""
        binding, queue = self._binding, self._queue
        if not binding.claimable(queue):
            yield from binding.browse(queue)
            return
        left = binding.backlog(queue)
        started = time.monotonic()
        while left > 0:
            if binding.lease and time.monotonic() - started > binding.lease / 2:
                raise OptionError(
                    f"queue '{queue}': claims last {binding.lease:g} s, and what stays there would be "
                    "claimed again while others are read: raise visibilityTimeout (on Service Bus the "
                    "queue's lock duration), or set a limit"
                )
            batch = binding.claim(queue, min(left, binding.capabilities.claim_batch), _BATCH_BYTES)
            if not batch.num_rows:
                return
            left -= batch.num_rows
            yield batch


class Claim:
    """One batch of a queue that is held.

    Attributes:
        deliveries: a `DELIVERIES` batch.
    """

    def __init__(self, binding: Binding, queue: str, deliveries: pa.RecordBatch, lines: MessageLog) -> None:
        self.deliveries = deliveries
        self._binding = binding
        self._queue = queue
        self._lines = lines
        self._held = set(range(deliveries.num_rows))

    def acknowledge(self, rows: Sequence[int]) -> int:
        """Take rows out of the queue for ever; how many were still there."""
        taken = self._take(rows)
        gone = self._binding.acknowledge(self._queue, taken)
        self._lines.write_all("taken", taken, self._queue)
        self._held -= set(rows)
        return int(gone.true_count)

    def release(self) -> None:
        """Release the rows that were not acknowledged."""
        self._binding.release(self._queue, self._take(sorted(self._held)))

    def _take(self, rows: Sequence[int]) -> pa.RecordBatch:
        return self.deliveries.take(pa.array(rows, pa.int64()))


def _is_done(plan: Plan, result: Redriven) -> bool:
    return len(result.moves) == plan.limit or plan.selection.is_done()


def _within_limit(chosen: Mapping[int, Move], plan: Plan, result: Redriven) -> dict[int, Move]:
    """Return the first of the chosen rows, as many as may still move."""
    room = None if plan.limit is None else plan.limit - len(result.moves)
    return dict(islice(chosen.items(), room))


def _choose(
    batch: pa.RecordBatch, plan: Plan, binding: Binding, given: Options, result: Redriven
) -> dict[int, Move]:
    """Choose the rows that may move; count the others."""
    rows = to_rows(batch, plan.queue, binding, SCHEMA, given)
    selected = plan.selection.rows(batch, rows)
    redriven = given.form.redriven(batch)
    read = given.form.decode(redriven.batch(), allow_list_data=given.allow_empty_list_data)
    stripped = read.column("error").to_pylist()
    chosen: dict[int, Move] = {}
    columns = rows.select(["job", "trace_id", "meta", "dead_letter", "delivery"]).to_pylist()
    for row, (refused, envelope) in enumerate(zip(stripped, columns, strict=True)):
        block = envelope["dead_letter"] or {}
        target = plan.to or block.get("original_queue") or (envelope["meta"] or {}).get("queue") or ""
        if row not in selected:
            result.kept["not selected"] += 1
        elif refused is not None and not plan.poison:
            result.kept["not acceptable"] += 1
        elif target == plan.queue or not _is_target(target, plan, binding, given):
            result.kept["no queue"] += 1
        elif _is_fresh(
            block.get("failed_at") or envelope["delivery"]["enqueued_at"], binding.duplicate_window(target)
        ):
            result.kept["too fresh"] += 1
        else:
            chosen[row] = _move_of(envelope, target)
    return chosen


def _is_target(queue: str, plan: Plan, binding: Binding, given: Options) -> bool:
    """Tell whether a message can go to a queue of this name, and may where the message itself names it."""
    named_by_user = plan.to or is_dead_letter_queue(plan.queue, queue, given, binding)
    try:
        (binding.check_target if named_by_user else binding.check_foreign)(queue)
    except OptionError:
        return False
    return True


def _is_fresh(since: datetime | None, window: float) -> bool:
    """Tell whether the broker may still know the id, and would drop the message as a duplicate."""
    if not window:
        return False
    return since is None or (datetime.now(UTC) - since).total_seconds() < window


def _move_of(envelope: dict[str, Any], target: str) -> Move:
    meta, block = envelope["meta"] or {}, envelope["dead_letter"] or {}
    return Move(meta.get("id"), envelope["trace_id"], envelope["job"], block.get("reason"), target)


@dataclass
class _Mover:
    """Publishes what is chosen, then acknowledges it.

    Attributes:
        failed: queue → why it took no more.
        too_large: queue → ids of the messages that are too large for it.
    """

    plan: Plan
    binding: Binding
    form: Form
    lines: MessageLog
    result: Redriven
    failed: dict[str, str] = field(default_factory=dict)
    too_large: dict[str, list[str]] = field(default_factory=dict)

    def move(self, claim: Claim, chosen: Mapping[int, Move]) -> None:
        """Move rows up to the limit; those that a queue does not take stay, and make room for others."""
        while part := _within_limit(chosen, self.plan, self.result):
            for target in dict.fromkeys(move.to for move in part.values()):
                self._move_to(target, claim, {row: move for row, move in part.items() if move.to == target})
            chosen = {row: move for row, move in chosen.items() if row not in part}

    def _move_to(self, target: str, claim: Claim, moves: Mapping[int, Move]) -> None:
        rows = list(moves)
        messages = _outgoing(claim.deliveries.take(pa.array(rows)), self.plan, self.binding, self.form)
        try:
            for part, error in publish_or_singly(self.binding, target, messages, lines=self.lines):
                some = rows[part.start : part.stop]
                if error is None:
                    claim.acknowledge(some)
                    self.result.moves += [moves[row] for row in some]
                elif isinstance(error, MessageTooLargeError):
                    self.too_large.setdefault(target, []).extend(str(moves[row].id) for row in some)
                    self.result.kept["too large"] += len(some)
                else:
                    raise error
        except _OF_ALL_QUEUES:
            raise
        except BrokerError as error:
            if self.plan.to is not None:
                raise
            self.failed[target] = error.text

    def check(self) -> None:
        """Raise `QueuesFailedError` where queues took no more, or not what is too large for them."""
        failed = {target: _too_large(ids) for target, ids in self.too_large.items()} | self.failed
        if failed:
            raise QueuesFailedError.of(failed, self.result, len(self.result.moves))


def _too_large(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:_MOST_SHOWN]) + (" and others" if len(ids) > _MOST_SHOWN else "")
    return f"{len(ids)} messages are larger than it takes and stay: {shown}"


def _outgoing(deliveries: pa.RecordBatch, plan: Plan, binding: Binding, form: Form) -> pa.RecordBatch:
    can = binding.capabilities
    count = deliveries.num_rows
    bodies, found = form.redriven(deliveries)
    headers = carried_headers(found, binding)
    if plan.bypass:
        mark = (BYPASS_HEADER, "1")
        given = ([pair for pair in pairs or () if pair[0] != mark[0]] for pairs in headers.to_pylist())
        headers = pa.array([[*pairs, mark] for pairs in given], HEADERS)
    keys = deliveries.column("key") if can.keys else pa.nulls(count, pa.string())
    columns = [bodies, headers, keys, pa.nulls(count, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=OUTGOING)
