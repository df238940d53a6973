"""Move dead letters back to the queue that they came from, or to another one."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.worker.dead_letters.moves import Plan, Redriven, Selection, move

_ROW = "redrive_row"


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
        poison: also move messages that no reader accepts, even without their block. PHP's `"data":[]` needs
            the option `allowEmptyListData` instead.
        bypass: mark them with the header `bq-replay-bypass`, which asks handlers for no effects outside.
        dry_run: move nothing, and return what would be moved.

    Raises:
        OptionError: the broker keeps no headers for `bypass`, messages would go round in circles, or claims
            would lapse before the end.
        QueuesFailedError: some queues took no more, or messages are too large for them; these letters stay,
            the others moved.
        BrokerError: the broker is out of reach or full, or `to` takes nothing; earlier moves stay.
    """
    condition = F.expr(where) if isinstance(where, str) else where
    selection = _All() if condition is None else _Matching(spark, condition)
    plan = Plan(queue, selection, to, limit, poison, bypass, dry_run)
    return move(read_options({**options, "queue": queue}), plan)


class _All(Selection):
    def rows(self, deliveries: pa.RecordBatch, columns: pa.RecordBatch) -> set[int]:
        del columns
        return set(range(len(deliveries)))


class _Matching(Selection):
    """Selects what a condition of Spark is true of."""

    def __init__(self, spark: SparkSession, where: Column) -> None:
        self._spark = spark
        self._where = where

    def rows(self, deliveries: pa.RecordBatch, columns: pa.RecordBatch) -> set[int]:
        numbers = pa.array(range(len(deliveries)))
        numbered = pa.table([*columns.columns, numbers], names=[*columns.schema.names, _ROW])
        found = self._spark.createDataFrame(numbered).where(self._where).select(_ROW).collect()
        return {row[0] for row in found}
