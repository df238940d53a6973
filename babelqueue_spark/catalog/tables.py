"""A table for each URN of a catalog, written by one query; what fits none goes to the table `others`."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from babelqueue_spark.catalog.targets import Files, Tables, columns_of
from babelqueue_spark.catalog.variants import VARIANT_FORMATS, payload_column, payload_type
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.errors import CatalogError, OptionError
from babelqueue_spark.functions import violation
from babelqueue_spark.schemas.registry import Registry

OTHERS = "others"
_NEEDED = ("job", "trace_id", "data", "meta", "attempts", "error", "queue", "body")


class Batches:
    """Writes each batch into the tables, which it creates or widens: the function for foreachBatch.

    Args:
        catalog: judges the payloads.
        messages: a stream with the columns of a read, `data` as text.
        target: where the tables are.
        variant: write VARIANT for what has no fixed type, instead of JSON text.

    Raises:
        CatalogError: a table cannot take what its schema says now.
        OptionError: columns are missing, or the format has no VARIANT.
    """

    def __init__(
        self, catalog: Registry, messages: DataFrame, target: Files | Tables, variant: bool = False
    ) -> None:
        _check_columns(messages)
        if variant and target.format.lower() not in VARIANT_FORMATS:
            raise OptionError(
                f"VARIANT is written to {' and '.join(VARIANT_FORMATS)}, not to {target.format}: take one of "
                "these, or leave it out"
            )
        types = {urn: payload_type(catalog, urn, variant) for urn in catalog.urns}
        self._catalog = catalog
        self._types = _prepared(messages, types, target)
        others = _others(_with_violation(messages), variant).schema
        prepared = target.prepare(messages.sparkSession, OTHERS, others)
        self._variant = "data" in prepared.names
        self._target = target
        self._may_repeat = True

    def write(self, batch: DataFrame, number: int) -> dict[str, int]:
        """Write a batch, or write it again; returns URN → messages, and `others` → those in that table.

        The first batch of a run may have been written in part, perhaps by another catalog: there, tables
        without messages get an empty part too.
        """
        part = f"{_query_id(batch.sparkSession)[:8]}-{number:06d}"
        judged = _judged(batch, self._catalog, list(self._types)).persist()
        try:
            counted = judged.groupBy("table_of").count().collect()
            found = {row.table_of: row["count"] for row in counted}
            for urn in self._types:
                if urn in found or self._may_repeat:
                    self._write(judged.where(F.col("table_of") == urn), urn, part)
            if None in found or self._may_repeat:
                rest = judged.where(F.col("table_of").isNull())
                self._target.write(_others(rest, self._variant), OTHERS, part)
        finally:
            judged.unpersist()
        self._may_repeat = False
        return {urn or OTHERS: messages for urn, messages in found.items()}

    def _write(self, messages: DataFrame, urn: str, part: str) -> None:
        data = payload_column("data", self._types[urn]).alias("data")
        columns = columns_of(messages, data, F.col("data").alias("data_json"))
        self._target.write(columns, self._target.name(urn), part)


def _prepared(messages: DataFrame, types: Mapping[str, Any], target: Files | Tables) -> dict[str, Any]:
    """Make or widen the tables of URNs; returns the types of `data` in them."""
    names = [OTHERS, *map(target.name, types)]
    if len(set(names)) < len(names):
        raise CatalogError(f"a URN of the catalog has the table '{OTHERS}', which is for what fits no schema")
    spark = messages.sparkSession
    text = StructField("data_json", StringType())
    head = columns_of(messages).schema.fields
    found = {}
    for urn, kind in types.items():
        columns = StructType([*head, StructField("data", kind), text])
        found[urn] = target.prepare(spark, target.name(urn), columns)["data"].dataType
    return found


def _judged(batch: DataFrame, catalog: Registry, urns: list[str]) -> DataFrame:
    """Return the messages with `violation`, and `table_of`: the URN whose table takes them, or null."""
    found = F.when(F.col("error").isNull(), violation("job", "data", catalog))
    judged = _with_violation(batch).withColumn("violation", F.coalesce("violation", found))
    fits = F.col("error").isNull() & F.col("violation").isNull() & F.col("job").isin(urns)
    return judged.withColumn("table_of", F.when(fits, F.col("job")))


def _with_violation(messages: DataFrame) -> DataFrame:
    """Return the messages with the column that a read has with the option `catalog`."""
    if "violation" in messages.columns:
        return messages
    return messages.withColumn("violation", F.lit(None).cast("string"))


def _others(messages: DataFrame, variant: bool) -> DataFrame:
    parsed = [F.try_parse_json("data").alias("data")] if variant else []
    text = F.col("data").alias("data_json")
    return columns_of(messages, F.col("error"), F.col("violation"), text, F.col("body"), *parsed)


def _check_columns(messages: DataFrame) -> None:
    names = {field.name: field.dataType for field in messages.schema}
    missing = [name for name in _NEEDED if names.get(name) != SCHEMA[name].dataType]
    if missing:
        raise OptionError(
            f"tables need the columns of a read as they are, but {', '.join(missing)} is missing or of "
            "another type: leave .schema(...) out"
        )


def _query_id(spark: SparkSession) -> str:
    query: str | None = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query is None:
        raise OptionError("tables are written by the query that Catalog.tables starts")
    return query
