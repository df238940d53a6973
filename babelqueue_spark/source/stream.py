"""The stream reader: plans batches on the driver, reads them from queue and journal on executors."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import Binding
from babelqueue_spark.errors import DataLossError, OptionError
from babelqueue_spark.journal import Journal
from babelqueue_spark.options import Options
from babelqueue_spark.rows.reading import to_rows
from babelqueue_spark.source.claiming import deliveries_of
from babelqueue_spark.source.pace import Pace, SupportsTriggerAvailableNow
from babelqueue_spark.source.plan import Claim, check_no_offsets, claims, offset, plan_reads

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
                "option 'journalLocation' is required for streaming reads: a directory (or fsspec URL) "
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
        """The end of what Spark has proved committed, as the journal knows it."""
        return self._planning.initial_offset()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """The next planned batch, or `start` when the queues are empty.

        Spark 4.2 passes `start` and `limit`, 4.1 neither.
        """
        unlimited = type(limit).__name__ == "ReadAllAvailable"
        return self._planning.latest_offset(start, unlimited=unlimited)

    def getDefaultReadLimit(self) -> Any:
        """At most `maxMessagesPerTrigger` a batch."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember how much is there now: this query stops after so many messages."""
        self._planning.drain_what_is_there()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The backlog of each queue when it was last looked at, for the query progress."""
        return {"backlog": self._planning.backlog, "total": sum(self._planning.backlog.values())}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """The claims of the batches after `start` up to `end`, the same ones on each replay."""
        return self._planning.partitions(start, end)

    def commit(self, end: Any) -> None:
        """Spark has finished everything up to `end`: its segments may go."""
        self._planning.commit(end)

    def stop(self) -> None:
        """Close the driver's connection; nothing depends on it being called."""
        if self._planner is not None:
            self._planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Claim, journal, acknowledge, yield; a replay yields what the journal holds."""
        assert isinstance(partition, Claim)
        journal = Journal(str(self._options.journal_location))
        with self._options.queue_binding() as binding:
            for batch in deliveries_of(partition, self._options, journal, binding):
                for first in range(0, batch.num_rows, _ROWS_PER_BATCH):
                    yield to_rows(
                        batch.slice(first, _ROWS_PER_BATCH),
                        partition.queue,
                        binding,
                        self._schema,
                        self._options.allow_empty_list_data,
                    )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}


class _Planner:
    """The driver's side: owns the journal, asks for backlogs, numbers the batches."""

    def __init__(self, options: Options) -> None:
        self.backlog: dict[str, int] = dict.fromkeys(options.queue, 0)
        self._options = options
        self._journal = Journal(str(options.journal_location))
        self._binding: Binding = options.queue_binding()
        self._owner = False
        self._end: dict[str, Any] | None = None
        self._committed = 0
        self._first_plan = True
        self._target: dict[str, int] | None = None
        self._planned_here: set[int] = set()
        self._pace = Pace()

    def close(self) -> None:
        self._binding.close()

    def initial_offset(self) -> dict[str, Any]:
        return offset(self._journal.id, self._journal.state().committed)

    def drain_what_is_there(self) -> None:
        self._look()
        self._target = dict(self.backlog)

    def latest_offset(self, start: dict[str, Any] | None, *, unlimited: bool) -> dict[str, Any]:
        self._own()
        known = start or self._end or self._last_planned()
        if self._target is None and self._pace.resting():
            return known
        self._journal.check_owner()
        known = self._not_cleaned(known)
        self._settle(known, proved=start is not None or self._end is not None)
        planned = self._journal.plan(int(known["batch"]) + 1)
        if planned is None:
            planned = self._plan_next(int(known["batch"]) + 1, self._budget(unlimited))
        self._pace.looked(idle=planned is None)
        return planned or known

    def _last_planned(self) -> dict[str, Any]:
        last = self._journal.last_planned()
        return self._journal.plan(last) or offset(self._journal.id, last)

    def _settle(self, known: dict[str, Any], *, proved: bool) -> None:
        """Being asked what follows a batch proves that Spark has finished it."""
        batch = int(known["batch"])
        if self._target is not None and batch in self._planned_here:
            self._planned_here.discard(batch)
            self._target = self._still_to_drain(self._target, known)
        if proved and batch > self._committed:
            self._journal.commit(batch, self._options.journal_retention)
            self._committed = batch

    def _still_to_drain(self, target: dict[str, int], plan: dict[str, Any]) -> dict[str, int]:
        """The target less what the batch really claimed; nothing when it claimed nothing."""
        claimed: Counter[str] = Counter()
        for claim in claims(plan, committed=0):
            claimed[claim.queue] += _claimed(self._journal, claim)
        if not claimed.total():
            return dict.fromkeys(target, 0)
        return {queue: max(0, count - claimed[queue]) for queue, count in target.items()}

    def _plan_next(self, batch: int, budget: int | None) -> dict[str, Any] | None:
        self._look()
        reads = plan_reads(self._readable(), self._options, budget)
        if not reads:
            return None
        self._first_plan = False
        self._planned_here.add(batch)
        plan = offset(
            self._journal.id,
            batch,
            reads=reads,
            backlog=dict(self.backlog),
            planned_at=round(time.time(), 3),
        )
        return self._journal.record_plan(batch, plan)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Claim]:
        self._own()
        self._journal.check_owner()
        self._end = end
        found: list[Claim] = []
        state = self._journal.state()
        for batch in range(int(start["batch"]) + 1, int(end["batch"]) + 1):
            plan = self._journal.plan(batch)
            if plan is None or batch <= state.cleaned or end["journal"] != self._journal.id:
                self._lost(batch)
                continue
            found.extend(claims(plan, state.committed))
        return found

    def commit(self, end: dict[str, Any]) -> None:
        self._own()
        self._journal.check_owner()
        self._journal.commit(int(end["batch"]), self._options.journal_retention)

    def _own(self) -> None:
        if not self._owner:
            _ = self._journal.id
            self._journal.take_over()
            self._owner = True

    def _not_cleaned(self, start: dict[str, Any]) -> dict[str, Any]:
        """`start`, or the end of the cleaned part when the checkpoint is older than that."""
        cleaned = self._journal.state().cleaned
        if start["journal"] == self._journal.id and int(start["batch"]) >= cleaned:
            return start
        self._lost(int(start["batch"]) + 1)
        return offset(self._journal.id, max(cleaned, int(start["batch"])))

    def _lost(self, batch: int) -> None:
        message = (
            f"batch {batch} of the checkpoint is not in the journal {self._journal.location}: "
            "it was cleaned, or the journal was replaced, and its messages cannot be read again"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{message}. Start from a fresh checkpoint to read what the journal still holds, "
                "or set failOnDataLoss to false to go on without them"
            )
        logger.warning("%s; going on, because failOnDataLoss is false", message)

    def _readable(self) -> dict[str, int]:
        if self._target is None:
            return self.backlog
        return {queue: min(count, self._target[queue]) for queue, count in self.backlog.items()}

    def _budget(self, unlimited: bool) -> int | None:
        without_admission_control = not hasattr(DataSourceStreamReader, "getDefaultReadLimit")
        bounded = "maxMessagesPerTrigger" in self._options.given
        if without_admission_control and self._first_plan and not bounded:
            return None
        return None if unlimited and self._target is None else self._options.max_messages

    def _look(self) -> None:
        self.backlog = {queue: self._binding.backlog(queue) for queue in self._options.queue}


def _claimed(journal: Journal, claim: Claim) -> int:
    record = journal.segment(claim.batch, claim.index).ack_record()
    return record.claimed if record is not None else 0
