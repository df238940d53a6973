"""The catalog: the registry of the SDKs with Spark's types."""

import babelqueue_spark.needs_spark  # noqa: F401

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, DataType, StringType

from babelqueue_spark.catalog.tables import Batches
from babelqueue_spark.catalog.targets import Files, Tables
from babelqueue_spark.catalog.variants import payload_type
from babelqueue_spark.errors import OptionError
from babelqueue_spark.functions import udf
from babelqueue_spark.schemas.masking import MASK, Mask
from babelqueue_spark.schemas.registry import Registry

_NEEDED = ("job", "error", "data")


class Catalog(Registry):
    """A schema for each URN: its verdict on payloads, and their type in Spark.

    Args:
        location: a `registry.json` of the SDKs or its folder: a path, or the URL of an object store; or
            schemas by URN.
        config: of the object store, by the names that the options `journal.<name>` have.

    Raises:
        OptionError: a file is missing, or is no registry or schema.
    """

    def data_type(self, urn: str, *, variant: bool = False) -> DataType:
        """Return the type of a URN's payload, for `bq.decode` or `from_json`.

        What has no fixed type is JSON text, or VARIANT, which `from_json` takes.

        Raises:
            KeyError: there is no schema.
        """
        return payload_type(self, urn, variant)

    def mask(self, messages: DataFrame) -> DataFrame:
        """Return messages as they may be shown in a notebook: `***` stands for what is sensitive.

        That is in `data`, in `body`, and in the errors of dead letters. Whole payloads are hidden where the
        catalog has no schema for the URN, or one with marks that the payload violates.

        Args:
            messages: with the columns of a read, or with some of them.

        Raises:
            OptionError: `job` or `error` is missing, or `data` is no JSON text; or a mark is not followed.
        """
        return mask(messages, self)

    def tables(
        self,
        messages: DataFrame,
        target: str,
        *,
        format: str = "parquet",
        checkpoint: str | None = None,
        variant: bool = False,
        **trigger: Any,
    ) -> StreamingQuery:
        """Start a query that writes each URN into a table of its own, with typed `data`.

        Messages without a schema, with a violation or with an `error` go to the table `others`. A table is
        made for each URN of the catalog. Where a schema has new properties, its table gets the columns.

        Args:
            messages: a stream with the columns of a read.
            target: a folder (an absolute path that driver and executors share) that gets a folder of files
                for each URN; or a namespace, `[catalog.]schema`, that gets tables.
            format: of the files or tables.
            checkpoint: of the query; for a folder by default `_checkpoint` in it.
            variant: write VARIANT for what has no fixed type, instead of JSON text. Parquet and Delta Lake
                have it.
            trigger: as `DataStreamWriter.trigger` takes it, such as `availableNow=True`.

        Raises:
            CatalogError: a table has a column of another type than its schema says now.
            OptionError: an argument is invalid.
        """
        is_folder = "/" in target
        if is_folder and ("://" in target or format.lower() in ("delta", "iceberg")):
            raise OptionError(
                f"tables of the format {format} at {target} need a namespace: a catalog's schema, no folder"
            )
        if checkpoint is None and not is_folder:
            raise OptionError("tables in a namespace need checkpoint=, the checkpointLocation of the query")
        folder = target.rstrip("/")
        place = Files(folder, format) if is_folder else Tables(target, format)
        batches = Batches(self, messages, place, variant)

        def write(batch: DataFrame, number: int) -> None:
            batches.write(batch, number)

        writer = messages.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", checkpoint or f"{folder}/_checkpoint")
        return (writer.trigger(**trigger) if trigger else writer).start()


def mask(messages: DataFrame, catalog: Registry) -> DataFrame:
    """Mask messages as `Catalog.mask` does, by any registry."""
    types = {field.name: field.dataType for field in messages.schema}
    if wrong := [name for name in _NEEDED if types.get(name) != StringType()]:
        raise OptionError(
            f"messages can be masked while {', '.join(_NEEDED)} are texts, but {wrong[0]} is not: mask what "
            "a read gives, and select from that"
        )
    by = Mask(catalog)
    found = messages.withColumn("data", udf("mask", by.data, StringType())("job", "data", "error"))
    if "body" in types:
        found = found.withColumn("body", udf("mask", by.bodies, BinaryType())("body"))
    if "dead_letter" in types:
        letter = F.col("dead_letter").withField("error", F.lit(MASK))
        found = found.withColumn("dead_letter", F.when(F.col("dead_letter").isNotNull(), letter))
    return found
