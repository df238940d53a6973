"""Where the messages of each URN go: folders of files, or tables of a catalog, a part for each batch.

A part that is written again replaces what is there, so a repeated batch is there once.
"""

import hashlib
import json
import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType, StructField, StructType

from babelqueue_spark.catalog.widening import additions, widened
from babelqueue_spark.errors import CatalogError
from babelqueue_spark.storage import open_store

_SCHEMA = "_schema.json"


@dataclass(frozen=True)
class Files:
    """A folder for each URN, in it one for each part."""

    folder: str
    format: str

    def name(self, urn: str) -> str:
        return folder_of(urn)

    def prepare(self, spark: SparkSession, name: str, schema: StructType) -> StructType:
        """Note the schema of a table, widened where it was another; returns what to write.

        Raises:
            CatalogError: a column has another type now.
        """
        del spark
        store = open_store(self.folder, "tables")
        store.make_folder()
        store.make_folder(name)
        noted = store.read(f"{name}/{_SCHEMA}")
        known = None if noted is None else StructType.fromJson(json.loads(noted))
        wanted = schema if known is None else widened(known, schema, f"{self.folder}/{name}")
        if wanted != known:
            store.replace(f"{name}/{_SCHEMA}", wanted.json().encode())
        return wanted

    def write(self, messages: DataFrame, name: str, part: str) -> None:
        """Write a part, or write it again."""
        messages.write.format(self.format).mode("overwrite").save(f"{self.folder}/{name}/part={part}")


@dataclass(frozen=True)
class Tables:
    """A table for each URN in a namespace, with a column that says which part a row is of."""

    namespace: str
    format: str

    def name(self, urn: str) -> str:
        return table_of(urn)

    def prepare(self, spark: SparkSession, name: str, schema: StructType) -> StructType:
        """Create a table, or add the columns that it lacks; returns what to write.

        Raises:
            CatalogError: a column has another type now, or the format cannot add one within another.
        """
        table = self._created(spark, name, schema)
        fields = [field for field in spark.table(table).schema if field.name != "part"]
        known = StructType(fields)
        wanted = widened(known, schema, table)
        for path, kind in additions(known, wanted):
            try:
                spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({quoted(*path)} {_ddl(kind)})")
            except AnalysisException as error:
                raise CatalogError(
                    f"{table} lacks {'.'.join(path)}, and the format {self.format} cannot add it there: "
                    "begin another namespace, or take Delta or Iceberg"
                ) from error
        return wanted

    def write(self, messages: DataFrame, name: str, part: str) -> None:
        """Write a part, or write it again in place of what a kill in mid-write left."""
        spark = messages.sparkSession
        columns = f"{self._created(spark, name, messages.schema)} PARTITION (part = '{part}')"
        spark.sql(f"INSERT OVERWRITE {columns} SELECT * FROM {{messages}}", messages=messages)  # noqa: S608 (quoted)

    def _created(self, spark: SparkSession, name: str, schema: StructType) -> str:
        """Make a table where it is missing; returns its whole name."""
        table = quoted(*self.namespace.split("."), name)
        columns = StructType([*schema, StructField("part", StringType())]).toDDL()
        layout = f"({columns}) USING {quoted(self.format)} PARTITIONED BY (part)"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} {layout}")
        return table


def columns_of(messages: DataFrame, *others: Column) -> DataFrame:
    """Return what a table has of each message: where it is from, then `others`."""
    return messages.select(
        "job", "trace_id", "meta.id", "queue", "meta.lang", "meta.created_at", "attempts", *others
    )


def quoted(*parts: str) -> str:
    """Return an identifier of Spark SQL."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _ddl(kind: DataType) -> str:
    """Return a type of Spark SQL, its members quoted where they need it."""
    return StructType([StructField("it", kind)]).toDDL().removeprefix("it ")


def folder_of(urn: str) -> str:
    """Return the folder of a URN: readable, one for each, within the one that was named, and not hidden."""
    return _name(urn, r"[A-Za-z0-9-][A-Za-z0-9:-]{0,99}", ".")


def table_of(urn: str) -> str:
    """Return the table of a URN: letters, digits and `_`; none differ by case alone."""
    return _name(urn, r"[a-z0-9][a-z0-9:]{0,99}", "__").lower()


def _name(urn: str, as_it_is: str, joint: str) -> str:
    if re.fullmatch(as_it_is, urn):
        return urn.replace(":", "_")
    readable = re.sub(r"[^A-Za-z0-9]", "_", urn)[:100].lstrip("_") or "urn"
    return f"{readable}{joint}{hashlib.blake2b(urn.encode(), digest_size=8).hexdigest()}"
