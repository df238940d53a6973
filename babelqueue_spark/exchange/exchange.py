"""Send messages to one queue, publish them to several, and write them through stages."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType

from babelqueue_spark.connector.options import envelope_options
from babelqueue_spark.connector.rows.writing import NO_QUEUE, refused_targets
from babelqueue_spark.errors import BabelQueueError, OptionError, QueuesFailedError, line_of
from babelqueue_spark.exchange.routing import Routes, job_of, text_of
from babelqueue_spark.exchange.stages import REASON, Stages, with_source
from babelqueue_spark.worker.destinations import Pairs

logger = logging.getLogger(__name__)

UNROUTED = "unrouted"
"""The original queue of dead letters that no route matches, where the options name no queue."""
NO_ROUTE = "no_route"
_DEAD_LETTERS = "dead letters"
"""Stands for their queues among those that failed."""
_QUEUE = "_exchange_queue"
_OF_A_READ = {"error", "delivery"}
"""Columns that say that rows were read: their `queue` is where they came from."""
Transaction = tuple[str, int]
"""Name and number that a repeat of the same write has again, as the options `txnAppId` and `txnVersion`."""


@dataclass(frozen=True)
class Written:
    """What a write did.

    Attributes:
        messages: queue → messages.
        dead_letters: reason → messages that went to the dead letters.
    """

    messages: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)


class Exchange:
    """Routes and stages for messages of one broker.

    Args:
        options: those of a write. `queue` is where messages without a route are said to come from when they
            become dead letters.
        routes: URN patterns, in which `*` stands for any text, with a queue or several: a mapping, or pairs.
        stages: what messages pass before they are written.

    Raises:
        OptionError: an option or a route is invalid.
    """

    def __init__(self, options: Mapping[str, Any], routes: Pairs, stages: Stages | None = None) -> None:
        self._options = {name: str(value) for name, value in options.items()}
        self._parsed = envelope_options(self._options, "an exchange")
        if self._parsed.txn_app_id is not None:
            raise OptionError("options 'txnAppId' and 'txnVersion' are an argument here: write(…, txn=…)")
        self._origin = self._parsed.queue[0] if self._parsed.queue else UNROUTED
        self._routes = Routes(routes)
        self._stages = stages or Stages()

    def send(self, frame: DataFrame) -> DataFrame:
        """Fill the column `queue` by the best route: an exact URN, else the longest pattern.

        A queue that a row names stays; null where no route matches. Rows that were read (a column `error` or
        `delivery`) name none. Where they have an `error`, they keep the queue that they came from.
        """
        kept = text_of(frame, "queue")
        if _OF_A_READ & {*frame.columns}:
            kept = F.when(_is_invalid(frame), kept)
        return frame.withColumn("queue", F.coalesce(kept, self._routes.best(job_of(frame))))

    def publish(self, frame: DataFrame) -> DataFrame:
        """Make a row for each queue with a route that matches; `write` gives them one id and one trace.

        A row names its queues itself by a column `queue`, a text or an array of texts. Of rows that were read
        an array does. A row that has no queue stays one row, whose queue is null, and one with an `error`
        stays one row with its queue. Only `write` takes what this returns.
        """
        named, origin = _queues_of(frame)
        queues = F.when(_is_invalid(frame), F.array(origin)).otherwise(
            F.coalesce(named, self._routes.all(job_of(frame)))
        )
        return (
            with_source(frame)
            .select("*", F.explode_outer(queues).alias(_QUEUE))
            .drop("queue")
            .withColumnRenamed(_QUEUE, "queue")
        )

    def write(self, frame: DataFrame, txn: Transaction | None = None) -> Written:
        """Run the stages and publish each row to its `queue`; dead letters for what is invalid or has none.

        A row that was read with an `error` passes no stage: it is a dead letter with its body.

        A queue that fails does not stop the others. Rows are computed once, and kept by Spark until all are
        written.

        Args:
            frame: what `send` or `publish` gave, or columns of a write with `queue`.
            txn: a repeat with the same publishes what is missing, on brokers that keep idempotency keys: in
                `foreachBatch` a name and the batch's number; None = copies of a repeat have other ids.

        Raises:
            QueuesFailedError: some queues failed; the others are written, and stand in `done`.
            BabelQueueError: a stage changed what it must not change; nothing was written.
        """
        given = self._stages.marked(frame).persist()
        seed = uuid.uuid4().hex if txn is None else f"{txn[0]} {txn[1]}"
        passed = self._stages.run(given, seed).persist()
        try:
            self._stages.check(passed, given.count())
            return self._write(self._judged(self._stages.stripped(passed)), txn)
        finally:
            passed.unpersist()
            given.unpersist()

    def _judged(self, rows: DataFrame) -> DataFrame:
        """Rows with a reason where they have no queue either, or one that can be none."""
        queue = text_of(rows, "queue")
        names = [row[0] for row in rows.select(queue).distinct().collect()]
        with self._parsed.binding() as binding:
            refused = queue.isin([*refused_targets(pa.array(names, pa.string()), binding)])
        reason = F.when(queue.isNull(), F.lit(NO_ROUTE)).when(refused, F.lit(NO_QUEUE))
        return rows.withColumns({"queue": F.when(~refused, queue), REASON: F.coalesce(REASON, reason)})

    def _write(self, rows: DataFrame, txn: Transaction | None) -> Written:
        found = rows.groupBy("queue", REASON).count().collect()
        dead = {row[REASON]: 0 for row in found if row[REASON] is not None}
        messages: dict[str, int] = {}
        for row in found:
            if row[REASON] is None:
                messages[row.queue] = row["count"]
            else:
                dead[row[REASON]] += row["count"]
        failed: dict[str, str] = {}
        valid = rows.where(F.col(REASON).isNull()).drop(REASON)
        for queue in sorted(messages):
            self._save(valid.where(F.col("queue") == queue), queue, txn, failed)
        if dead:
            self._save(self._dead_letters(rows), _DEAD_LETTERS, txn, failed)
        written = {queue: count for queue, count in messages.items() if queue not in failed}
        done = Written(written, {} if _DEAD_LETTERS in failed else dead)
        if failed:
            raise QueuesFailedError.of(failed, done, sum([*written.values(), *done.dead_letters.values()]))
        return done

    def _save(self, rows: DataFrame, queue: str, txn: Transaction | None, failed: dict[str, str]) -> None:
        """Write rows; notes why that failed."""
        options = dict(self._options)
        if txn is not None:
            options |= {"txnAppId": txn[0], "txnVersion": str(txn[1])}
        try:
            rows.write.format("babelqueue").options(**options).mode("append").save()
        except (BabelQueueError, PySparkException) as error:
            failed[queue] = line_of(error)
            logger.error("%s: %s", queue, failed[queue])

    def _dead_letters(self, rows: DataFrame) -> DataFrame:
        block = F.struct(
            F.col(REASON).alias("reason"),
            text_of(rows, "violation").alias("error"),
            F.coalesce(F.col("queue"), F.lit(self._origin)).alias("original_queue"),
        )
        return rows.where(F.col(REASON).isNotNull()).withColumn("dead_letter", block).drop(REASON)


def _queues_of(frame: DataFrame) -> tuple[Column, Column]:
    """Return the queues that each row names, as an array, and the one that it came from; or null."""
    nothing = F.lit(None).cast("string")
    if "queue" in frame.columns and isinstance(frame.schema["queue"].dataType, ArrayType):
        return F.array_distinct(F.array_compact("queue")), nothing
    queue = text_of(frame, "queue")
    named = nothing if _OF_A_READ & {*frame.columns} else queue
    return F.when(named.isNotNull(), F.array(named)), queue


def _is_invalid(frame: DataFrame) -> Column:
    """Return whether a row was read with an error."""
    return text_of(frame, "error").isNotNull()
