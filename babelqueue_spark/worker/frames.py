"""The rows of a batch, as a worker takes them and gives them to its tasks."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.envelope import SCHEMA_VERSION, Reason
from babelqueue_spark.envelope.columns import BLANKS
from babelqueue_spark.errors import OptionError
from babelqueue_spark.functions import violation
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.worker.handling import Task
from babelqueue_spark.worker.rows import VERSION_HEADERS

_NO_PAIRS = "CAST(map() AS MAP<STRING, STRING>)"
_INPUT = [
    "body",
    "queue",
    f"coalesce(headers, {_NO_PAIRS}) AS headers",
    "attempts",
    "job",
    "trace_id",
    "meta.id AS id",
    "delivery.key AS key",
    "error",
    "violation",
    f"coalesce(meta.extra, {_NO_PAIRS}) AS extra",
]
"""`rows.INPUT`, without null maps: in a batch of Arrow, their time grows with the square of their number."""
_NEEDED = ("body", "queue", "headers", "attempts", "job", "trace_id", "data", "meta", "delivery", "error")
COUNTS = "job STRING, outcome STRING, reason STRING, messages BIGINT"
_RETURNED = f"{COUNTS}, links ARRAY<STRING>"


def acceptable() -> Column:
    """Select what `Rows.is_acceptable` does."""
    wanted = F.col("error").isNull()
    for name in VERSION_HEADERS:
        value = F.col("headers")[name]
        gated = value.rlike(f"[^{BLANKS}]") & (value != str(SCHEMA_VERSION))
        wanted &= ~F.coalesce(gated, F.lit(False))
    return wanted


def judged(frame: DataFrame, catalog: Registry | None) -> DataFrame:
    """Return the rows with a column `violation`, and an `error` where it is not null."""
    known = F.col("violation") if "violation" in frame.columns else F.lit(None).cast("string")
    if catalog is None:
        return frame.withColumn("violation", known)
    found = F.when(F.col("error").isNull(), violation("job", "data", catalog))
    judged = frame.withColumn("violation", F.coalesce(known, found))
    refused = F.when(F.col("violation").isNotNull(), F.lit(str(Reason.INVALID_PAYLOAD)))
    return judged.withColumn("error", F.coalesce("error", refused))


def run(frame: DataFrame, task: Task) -> list[Any]:
    """Run a task for each partition, and collect what they return."""
    return frame.selectExpr(*_INPUT).mapInArrow(task, _RETURNED).collect()


def tasks(frame: DataFrame) -> int:
    """Count the tasks of a batch."""
    if not isinstance(frame.sparkSession, SparkSession):
        raise OptionError(
            "a rate_limit of all tasks needs their number, which Spark Connect does not tell: say how often "
            "each task calls the handler, without 'total'"
        )
    return frame.rdd.getNumPartitions()


def admitted(frame: DataFrame, task: Task) -> DataFrame:
    """Return the rows that the tasks admit."""
    rows = frame.select(F.struct("*").alias("row"), *map(F.expr, _INPUT))
    return rows.mapInArrow(task, rows.schema).select("row.*")


def check_columns(schema: StructType) -> None:
    """Raise `OptionError` unless the rows have the columns of a read."""
    names = {field.name: field.dataType for field in schema}
    missing = [name for name in _NEEDED if names.get(name) != SCHEMA[name].dataType]
    if missing:
        raise OptionError(
            f"a worker needs the columns of a read as they are, but {', '.join(missing)} is missing or of "
            "another type: leave .schema(...) out, and give a DataFrame handler its data_schema"
        )
