"""The copies of a published message: each knows its source, and gets the same id and trace as the others."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from babelqueue_spark.exchange.routing import text_of

SOURCE = "_exchange_source"
"""A column with the name of the row that a copy was made of; null where there is none."""


def with_source(frame: DataFrame) -> DataFrame:
    """Name each row by its place and its content."""
    content = F.to_json(F.struct(*(F.col(name) for name in frame.columns if name != "body")))
    place = F.monotonically_increasing_id().cast("string")
    return frame.withColumn(SOURCE, F.sha2(F.concat_ws(" ", place, content), 256))


def with_ids(frame: DataFrame, seed: str) -> DataFrame:
    """Fill in `meta.id` and `trace_id` where copies lack them; the same for the same seed."""
    kind = frame.schema["meta"].dataType if "meta" in frame.columns else StructType()
    names = kind.fieldNames() if isinstance(kind, StructType) else []
    meta = F.col("meta")
    given = meta.getField("id") if "id" in names else F.lit(None).cast("string")
    others = [meta.getField(name).alias(name) for name in names if name != "id"]
    trace_id = F.coalesce(text_of(frame, "trace_id"), _uuid("trace_id", seed))
    message_id = F.coalesce(given, _uuid("meta.id", seed)).alias("id")
    return frame.withColumns({"trace_id": trace_id, "meta": F.struct(message_id, *others)})


def _uuid(purpose: str, seed: str) -> Column:
    """Return a UUID (version 8) of a source; null where there is none."""
    digest = F.sha2(F.concat(F.lit(f"{purpose} {seed} "), F.col(SOURCE)), 256)
    parts = (
        digest.substr(1, 8),
        digest.substr(9, 4),
        F.concat(F.lit("8"), digest.substr(14, 3)),
        F.concat(F.lit("a"), digest.substr(18, 3)),
        digest.substr(21, 12),
    )
    return F.when(F.col(SOURCE).isNotNull(), F.concat_ws("-", *parts))
