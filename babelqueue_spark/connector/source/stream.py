"""The stream reader of queues: the driver plans batches, executors read them through the journal."""

from __future__ import annotations

import difflib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import Binding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.reading import read_rows
from babelqueue_spark.connector.source.admission import BatchAdmission
from babelqueue_spark.connector.source.claiming import deliveries_of
from babelqueue_spark.connector.source.pace import Pace
from babelqueue_spark.connector.source.plan import (
    Claim,
    budget_of,
    check_no_offsets,
    claims,
    count_tasks,
    offset,
    plan_reads,
    task_bytes,
)
from babelqueue_spark.connector.source.spark_versions import (
    SupportsTriggerAvailableNow,
    is_unlimited,
    max_rows,
)
from babelqueue_spark.errors import BrokerError, DataLossError, OptionError
from babelqueue_spark.journal import FromQueue, Journal
from babelqueue_spark.storage import Survey

logger = logging.getLogger(__name__)

_ROWS_PER_BATCH = 10_000


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues as a stream of journalled batches.

    One instance plans on the driver (`initialOffset`, `latestOffset`, `partitions`, `commit`), pickled
    copies read on executors (`read`). The driver's instance owns the journal from its first plan on.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.journal_location is None:
            raise OptionError(
                "option 'journalLocation' is required for streaming reads: a directory or object store "
                "that driver and executors share, one for each query"
            )
        check_no_offsets(options)
        self._options = options
        self._schema = schema
        self._planner: _Planner | None = None

    @property
    def _planning(self) -> _Planner:
        if self._planner is None:
            self._planner = _Planner(self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Return the last batch that Spark has finished, as the journal knows it."""
        return self._planning.initial_offset()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Plan the next batch; return `start` if the queues are empty.

        Spark 4.2 passes `start` and `limit`, 4.1 neither.
        """
        return self._planning.latest_offset(start, unlimited=is_unlimited(limit))

    def getDefaultReadLimit(self) -> Any:
        return max_rows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planning.start_draining()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Report the backlog at the last poll, and what the journal has counted, for the query progress."""
        return self._planning.report()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Divide the batches after `start` up to `end` into claims; a replay makes the same ones."""
        return self._planning.partitions(start, end)

    def commit(self, end: Any) -> None:
        self._planning.commit(end)

    def stop(self) -> None:
        """Close the driver's connection; nothing depends on it being called."""
        if self._planner is not None:
            self._planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Claim, journal, acknowledge and yield; a replay yields what the journal holds."""
        assert isinstance(partition, Claim)
        options = self._options
        place = f"{partition.journal}-{partition.batch}-{partition.index}"
        with options.queue_binding() as binding:
            taken = _in_rows(deliveries_of(partition, options, options.journal(), binding))
            yield from read_rows(taken, "taken", place, binding, self._schema, options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}


class _Planner:
    """The driver's side: owns the journal, commits what Spark proves finished, and numbers the batches."""

    def __init__(self, options: Options) -> None:
        self.backlog: dict[str, int] = dict.fromkeys(options.queue, 0)
        self._options = options
        self._binding: Binding = options.queue_binding()
        self._check_claimable()
        self._journal = options.journal(self._binding.now)
        self._owner = self._polled = False
        self._end: dict[str, Any] | None = None
        self._new: dict[str, Any] | None = None  # a plan that nobody but this query can have made
        self._first_plan = True
        self._drain = _Drain(self._journal)
        self._pace = Pace()
        self._admission = BatchAdmission(options)

    def close(self) -> None:
        self._binding.close()

    def _check_claimable(self) -> None:
        for queue in self._options.queue:
            if not self._binding.claimable(queue):
                raise OptionError(
                    f"option 'queue': '{queue}' cannot be read as a stream, since its messages cannot be "
                    "claimed: read it with spark.read"
                )

    def initial_offset(self) -> dict[str, Any]:
        return offset(self._journal.id, self._journal.state().committed)

    def start_draining(self) -> None:
        self._poll()
        self._drain.start(self.backlog)

    def latest_offset(self, start: dict[str, Any] | None, *, unlimited: bool) -> dict[str, Any]:
        self._own()
        known = start or self._end or self._last_planned()
        if not self._drain.active and self._pace.resting():
            return known
        seen = self._journal.check_owner()
        known = self._not_cleaned(known)
        self._drain.finished(known)
        if start is not None or self._end is not None:  # by asking what follows, Spark proves it finished
            self._commit(int(known["batch"]), seen)
        batch = int(known["batch"]) + 1
        planned = self._journal.plan(batch, seen) or self._plan_next(batch, unlimited=unlimited)
        self._pace.polled(idle=planned is None)
        return planned or known

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Claim]:
        self._own()
        self._end = end
        new, self._new = self._new, None
        if end == new and int(start["batch"]) + 1 == int(end["batch"]):
            state = self._journal.state()
            settled = state.committed == int(start["batch"]) and not state.unacknowledged
            return claims(end, state.committed, end["planned_at"] if settled else None)
        self._journal.check_owner()
        found: list[Claim] = []
        state = self._journal.state()
        for batch in range(int(start["batch"]) + 1, int(end["batch"]) + 1):
            plan = self._journal.plan(batch)
            if plan is None or batch <= state.cleaned or end["journal"] != self._journal.id:
                self._report_data_loss(batch)
                continue
            found.extend(claims(plan, state.committed))
        return found

    def commit(self, end: dict[str, Any]) -> None:
        self._own()
        if int(end["batch"]) > self._journal.state().committed:
            self._commit(int(end["batch"]), self._journal.check_owner())

    def _commit(self, batch: int, seen: Survey) -> None:
        for unread in self._journal.commit(batch, self._options.journal_retention, seen):
            logger.warning(
                "batch %d of %s was not read, and its messages wait: a file sink skips batches that "
                "its output's _spark_metadata has from another checkpoint (write to a new output), or "
                "foreachBatch did not use the rows",
                unread,
                ", ".join(self._options.queue),
            )

    def report(self) -> dict[str, Any]:
        return {
            "backlog": self.backlog,
            "total": sum(self.backlog.values()),
            "tally": asdict(self._journal.tally),
            **self._admission.report(),
        }

    # -- ownership, and what is proved ---------------------------------------------------------------

    def _own(self) -> None:
        if not self._owner:
            _ = self._journal.id
            self._journal.take_over()
            self._owner = True

    def _last_planned(self) -> dict[str, Any]:
        last = self._journal.last_planned()
        return self._journal.plan(last) or offset(self._journal.id, last)

    def _not_cleaned(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return `start`, or the last cleaned batch if the checkpoint is older than that."""
        cleaned = self._journal.state().cleaned
        if start["journal"] == self._journal.id and int(start["batch"]) >= cleaned:
            return start
        self._report_data_loss(int(start["batch"]) + 1)
        return offset(self._journal.id, max(cleaned, int(start["batch"])))

    def _report_data_loss(self, batch: int) -> None:
        message = (
            f"batch {batch} of the checkpoint is not in the journal {self._journal.location}: "
            "it was cleaned, or the journal was replaced, and its messages cannot be read again"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{message}. Start from a fresh checkpoint to read what the journal still holds, "
                "or set failOnDataLoss to false to continue without them"
            )
        logger.warning("%s; going on, because failOnDataLoss is false", message)

    # -- the next batch ------------------------------------------------------------------------------

    def _poll(self) -> None:
        first, self._polled = not self._polled, True
        missing = list(filter(None, map(self._binding.missing, self._options.queue))) if first else []
        for what in dict.fromkeys(missing):
            logger.warning("%s is not there: it is created, and the query waits for its first message", what)
        self.backlog = {queue: self._binding.backlog(queue) for queue in self._options.queue}
        if first:
            self._advise()

    def _advise(self) -> None:
        """Warn of queues that seem empty: their messages lie elsewhere, or their names are misspelt."""
        empty = [queue for queue, messages in self.backlog.items() if not messages]
        names = set(self._binding.queues() if empty else ()) - set(self._options.queue)
        for queue in empty:
            if advice := self._binding.advice(queue):
                logger.warning("queue '%s' has no messages, but %s", queue, advice)
            dead = {self._binding.dead_letter_name(queue, style) for style in ("babelqueue", "initphp")}
            near = difflib.get_close_matches(queue, sorted(names - dead), cutoff=0.7)
            if filled := [name for name in near if self._has_messages(name)]:
                logger.warning("queue '%s' is empty: did you mean %s?", queue, ", ".join(filled))

    def _has_messages(self, queue: str) -> bool:
        """Tell whether a queue has messages that this login may see; one that is gone is not created."""
        try:
            return not self._binding.missing(queue) and self._binding.backlog(queue) > 0
        except BrokerError:
            return False

    def _plan_next(self, batch: int, *, unlimited: bool) -> dict[str, Any] | None:
        """Plan what the queues have now; None if they are empty, or a batch has to wait for more."""
        self._poll()
        limited = not (unlimited or self._drain.active)
        if limited and not self._admission.admits(sum(self.backlog.values())):
            return None
        unlimited = unlimited and not self._drain.active
        budget = budget_of(self._options, first=self._first_plan, unlimited=unlimited)
        reads = plan_reads(self._drain.capped(self.backlog), self._options, budget, batch)
        if not reads:
            return None
        self._first_plan = False
        self._drain.planned(batch)
        plan = offset(
            self._journal.id,
            batch,
            reads=reads,
            tasks=count_tasks(reads, self._options, budget),
            task_bytes=task_bytes(self._options, budget),
            backlog=dict(self.backlog),
            planned_at=round(self._binding.now(), 3),
        )
        recorded = self._journal.record_plan(batch, plan)
        self._new = plan if recorded is plan else None
        return recorded


class _Drain:
    """Counts down the backlog of the moment in which an `availableNow` query started.

    It ends when so many messages were claimed, or when a batch claimed none. It has no effect before `start`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._remaining: dict[str, int] | None = None
        self._planned: set[int] = set()

    @property
    def active(self) -> bool:
        return self._remaining is not None

    def start(self, backlog: Mapping[str, int]) -> None:
        """Stop after the messages (queue → count) that are there now."""
        self._remaining = dict(backlog)

    def capped(self, backlog: Mapping[str, int]) -> Mapping[str, int]:
        """Return the backlog (queue → count), less what came after `start`."""
        if self._remaining is None:
            return backlog
        return {queue: min(count, self._remaining[queue]) for queue, count in backlog.items()}

    def planned(self, batch: int) -> None:
        """Note that this query planned a batch, which will count; one that it replays does not."""
        self._planned.add(batch)

    def finished(self, plan: Mapping[str, Any]) -> None:
        """Subtract what a finished batch has really claimed."""
        if self._remaining is None or plan["batch"] not in self._planned:
            return
        self._planned.discard(plan["batch"])
        claimed = self._claimed(plan)
        if not claimed.total():
            self._remaining.update({read["queue"]: 0 for read in plan["reads"]})
        self._remaining = {queue: max(0, left - claimed[queue]) for queue, left in self._remaining.items()}

    def _claimed(self, plan: Mapping[str, Any]) -> Counter[str]:
        claimed: Counter[str] = Counter()
        for claim in claims(plan, committed=0):
            record = self._journal.segment(claim.batch, claim.index).ack_record()
            counts = record.claimed if record is not None else []
            for share, count in zip(claim.shares, counts, strict=False):
                claimed[share.queue] += count
        return claimed


def _in_rows(found: Iterable[FromQueue]) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
    """Cut and join deliveries into batches of at most `_ROWS_PER_BATCH`, each with the queues of its rows."""
    waiting: list[FromQueue] = []
    rows = 0
    for queue, batch in found:
        for first in range(0, batch.num_rows, _ROWS_PER_BATCH):
            part = batch.slice(first, _ROWS_PER_BATCH)
            if rows + part.num_rows > _ROWS_PER_BATCH:
                yield _joined(waiting)
                waiting, rows = [], 0
            waiting.append((queue, part))
            rows += part.num_rows
    if waiting:
        yield _joined(waiting)


def _joined(parts: Sequence[FromQueue]) -> tuple[pa.Array, pa.RecordBatch]:
    queues = [pa.repeat(pa.scalar(queue), batch.num_rows) for queue, batch in parts]
    if len(parts) == 1:
        return queues[0], parts[0][1]
    return pa.concat_arrays(queues), pa.concat_batches([batch for _, batch in parts])
