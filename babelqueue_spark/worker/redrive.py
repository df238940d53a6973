"""Move dead letters back to the queue that they came from, or to another one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.options import read_options
from babelqueue_spark.worker.moving import Plan, Redriven, move

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
        poison: also move messages that no reader accepts, even without their block.
        bypass: mark them with the header `bq-replay-bypass`, which asks handlers for no effects outside.
        dry_run: move nothing, and return what would be moved.

    Raises:
        OptionError: the broker keeps no headers for `bypass`, messages would go round in circles, or claims
            would lapse before the end.
        BrokerError: the broker is out of reach, or a target refuses a message; earlier moves stay.
    """
    condition = F.expr(where) if isinstance(where, str) else where
    select = _all if condition is None else partial(_matching, spark, condition)
    plan = Plan(queue, select, to, limit, poison, bypass, dry_run)
    return move(read_options({**options, "queue": queue}), plan)


def _all(deliveries: pa.RecordBatch, rows: pa.RecordBatch) -> set[int]:
    del rows
    return set(range(len(deliveries)))


def _matching(
    spark: SparkSession, where: Column, deliveries: pa.RecordBatch, rows: pa.RecordBatch
) -> set[int]:
    numbered = pa.table([*rows.columns, pa.array(range(len(deliveries)))], names=[*rows.schema.names, _ROW])
    found = spark.createDataFrame(numbered).where(where).select(_ROW).collect()
    return {row[0] for row in found}
