"""What the column functions give for some bodies, on whichever session they are asked."""

from __future__ import annotations

from typing import Any

from pyspark.sql.functions import col, hex, lit, regexp_replace, struct

from babelqueue_spark import functions as bq

DATA = "order_id BIGINT, amount DECIMAL(38,2), at TIMESTAMP, a STRING"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def results(spark: Any, bodies: list[bytes | None]) -> dict[str, list[list[Any]]]:
    """By name of the question, rows of texts and truths: nothing that differs from one run to the next.

    The first of the bodies must be a whole envelope.
    """
    bq.register(spark, "f_")
    frame = spark.createDataFrame([(one,) for one in bodies], "value binary")
    whole = spark.createDataFrame([(bodies[0],)], "value binary")
    frame.createOrReplaceTempView("all_bodies")
    whole.createOrReplaceTempView("whole_bodies")
    asked = {
        "of any body": of_any_body(frame),
        "of any body in SQL": spark.sql(OF_ANY_BODY),
        "of an envelope": of_an_envelope(whole),
        "of an envelope in SQL": spark.sql(OF_AN_ENVELOPE),
    }
    return {question: [list(row) for row in answer.collect()] for question, answer in asked.items()}


def of_any_body(frame: Any) -> Any:
    dead = bq.dead_letter("value", lit("failed"), lit("boom"), attempts=lit(3)).cast("string")
    return frame.select(
        bq.decode("value").cast("string"),
        bq.decode("value", DATA)["data"].cast("string"),
        bq.validate("value"),
        regexp_replace(dead, r'"failed_at":\d+', ""),
        hex(bq.strip_dead_letter("value")),
        bq.urn_matches(bq.decode("value")["job"], "urn:babel:*"),
        bq.trace_context(bq.decode("value")["trace_id"], lit(None)).cast("string"),
    )


OF_ANY_BODY = """
SELECT CAST(f_decode(value) AS STRING), f_validate(value),
    regexp_replace(CAST(f_dead_letter(value, 'failed', 'boom') AS STRING), '"failed_at":[0-9]+', ''),
    hex(f_strip_dead_letter(value)), f_urn_matches(f_decode(value).job, 'urn:babel:*'),
    CAST(f_trace_context(f_decode(value).trace_id, null) AS STRING)
FROM all_bodies
"""


def of_an_envelope(frame: Any) -> Any:
    queue = bq.decode("value")["meta"]["queue"]
    message = struct(lit("urn:a").alias("job"), lit('{"a":1.50}').alias("data"), queue.alias("queue"))
    following = bq.continue_trace("value", lit("urn:next"), lit('{"a":1.50}'))
    made = frame.select(
        "value",
        bq.decode(bq.encode(message)).alias("made"),
        bq.decode(following).alias("next"),
    )
    return made.select(
        hex(bq.encode(bq.decode("value"))),
        *shown("made"),
        *shown("next"),
        col("next.trace_id"),
        bq.trace_context(lit("a-b"), lit(TRACEPARENT)).cast("string"),
    )


def shown(column: str) -> list[Any]:
    """The fields of an envelope that are the same each time it is made."""
    return [
        col(f"{column}.{field}") for field in ("job", "data", "attempts", "meta.queue", "meta.lang", "error")
    ]


OF_AN_ENVELOPE = """
SELECT hex(f_encode(f_decode(value))), made.job, made.data, made.meta.queue, made.error,
    next.job, next.trace_id, next.data, next.meta.queue, next.error
FROM (
    SELECT value,
        f_decode(f_encode(named_struct('job', 'urn:a', 'data', '{"a":1.50}', 'queue', 'q'))) AS made,
        f_decode(f_continue_trace(value, 'urn:next', '{"a":1.50}')) AS next
    FROM whole_bodies
)
"""
