"""Spark's own Kafka source and sink with the envelope: rows of theirs to our columns, and back.

Where their jar is at hand they are a little faster than `format("babelqueue")`, which needs none and works
over Spark Connect. They know nothing of retry tiers, of publishing once, and of `bq-` headers but for what is
here.
"""

import babelqueue_spark.needs_spark  # noqa: F401

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from babelqueue_spark.connector.rows.reading import ENVELOPE, SCHEMA
from babelqueue_spark.connector.rows.writing import COLUMNS
from babelqueue_spark.errors import OptionError
from babelqueue_spark.functions import decode, encode

__all__ = ["from_kafka", "to_kafka"]

_NOT_IN_A_BODY = ("headers", "key", "delay", "deliver_at")


def from_kafka(rows: DataFrame, data_schema: DataType | str | None = None) -> DataFrame:
    """Rows of `spark.read` or `spark.readStream` of format `kafka` as the columns of a read.

    `attempts` is what the header `bq-attempts` says, else the body: read with `includeHeaders`, or headers
    are null. Of equal headers the first one counts. A tombstone is a row with an `error`, and an empty body.

    Args:
        rows: with `key`, `value`, `topic`, `partition`, `offset`, `timestamp`, and `headers` or not.
        data_schema: a type (or DDL) for `data`, instead of its JSON text; see `functions.decode`.
    """
    body = F.coalesce("value", F.lit(b""))
    found = rows.select("*", decode(body, data_schema).alias("_envelope"), _headers(rows).alias("_headers"))
    named = F.when(F.col("_headers")["bq-attempts"].rlike("^[0-9]+$"), F.col("_headers")["bq-attempts"])
    place = F.concat_ws(":", F.col("partition").cast("string"), F.col("offset").cast("string"))
    columns = {
        **{name: F.col("_envelope")[name] for name in ENVELOPE.fieldNames()},
        "attempts": F.coalesce(named.try_cast("int"), F.col("_envelope")["attempts"]),
        "queue": F.col("topic"),
        "headers": F.col("_headers"),
        "delivery": F.struct(
            place.alias("id"),
            F.lit(None).cast("int").alias("count"),
            F.lit(None).cast("boolean").alias("redelivered"),
            F.col("timestamp").alias("enqueued_at"),
            F.col("key").cast("string").alias("key"),
        ),
        "body": body,
    }
    return found.select(*(columns[name].alias(name) for name in SCHEMA.fieldNames()))


def to_kafka(messages: DataFrame, topic: str | None = None) -> DataFrame:
    """Rows for `df.write` or `df.writeStream` of format `kafka`: `topic`, `key`, `value` and `headers`.

    Ids that are missing are new ones each time a batch is written: give rows ids of your own where a repeated
    batch is to have the same.

    Args:
        messages: with the columns of a write; see docs/columns.md.
        topic: where rows go that name no `queue`.

    Raises:
        OptionError: a column cannot be written so, or no row has a topic.
    """
    names = messages.columns
    unknown = next((name for name in names if name not in COLUMNS or name in ("delay", "deliver_at")), None)
    if unknown:
        raise OptionError(f"column '{unknown}' cannot be written so: use format('babelqueue'), or drop it")
    if topic is None and "queue" not in names:
        raise OptionError("no row has a topic: name one, or give rows a column 'queue'")
    target = F.coalesce(*([F.col("queue")] if "queue" in names else []), F.lit(topic))
    parts = [F.col(name) for name in names if name not in (*_NOT_IN_A_BODY, "queue")]
    made = messages.select(
        target.alias("topic"),
        (F.col("key") if "key" in names else F.lit(None)).cast("binary").alias("key"),
        encode(F.struct(*parts, target.alias("queue"))).alias("value"),
        (F.col("headers") if "headers" in names else F.lit(None).cast("map<string,string>")).alias("_given"),
    )
    return made.select("topic", "key", "value", _projected(decode("value"), F.col("_given")).alias("headers"))


def _headers(rows: DataFrame) -> Column:
    """Headers as a map of text."""
    if "headers" not in rows.columns:
        return F.lit(None).cast("map<string,string>")
    given = F.col("headers")
    names = F.array_distinct(F.transform(given, lambda header: header["key"]))
    first = F.transform(
        names,
        lambda name: F.element_at(F.filter(given, lambda header: header["key"] == name), 1)["value"].cast(
            "string"
        ),
    )
    return F.map_from_arrays(names, first)


def _projected(envelope: Column, given: Column) -> Column:
    """Return the contract's headers, and those that were given beside them."""
    contract = {
        "bq-job": envelope["job"],
        "bq-trace-id": envelope["trace_id"],
        "bq-message-id": envelope["meta"]["id"],
        "bq-schema-version": envelope["meta"]["schema_version"],
        "bq-source-lang": envelope["meta"]["lang"],
        "bq-attempts": envelope["attempts"],
    }
    ours = F.array(*(_header(F.lit(name), value.cast("string")) for name, value in contract.items()))
    others = F.transform(F.map_entries(given), lambda entry: _header(entry["key"], entry["value"]))
    foreign = F.filter(others, lambda header: ~header["key"].isin(*contract))
    return F.concat(
        F.coalesce(foreign, F.array().cast("array<struct<key:string,value:binary>>")),
        F.filter(ours, lambda header: header["value"].isNotNull()),
    )


def _header(name: Column, value: Column) -> Column:
    return F.struct(name.alias("key"), value.cast("binary").alias("value"))
