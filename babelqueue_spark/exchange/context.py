"""The context of messages that follow from others: what names their cause, and keys that they take over."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.errors import OptionError
from babelqueue_spark.exchange.stages import Stage
from babelqueue_spark.worker.messages import CAUSATION_META
from babelqueue_spark.worker.publishing import checked_context

_OF_THE_CAUSE = ("attempts", "body", "dead_letter", "delivery", "error", "headers")
"""Columns of a read that say nothing about a message which follows from it."""


def derives(*context: str) -> Stage:
    """Make a stage that turns messages that were read into messages that follow from them.

    Each keeps `trace_id`. Its `meta` is new, but has `causation_id`, the `meta.id` of the message that it
    follows from, and the keys of `context`. It keeps its column `queue`: name another where that is the one
    that was read.

    Args:
        *context: keys of `meta` that are taken over, such as `tenant`.

    Raises:
        OptionError: a key is one of the envelope's own; or, when the stage runs, there is no column `meta`.
    """
    keys = checked_context(context)

    def stage(frame: DataFrame) -> DataFrame:
        if "meta" not in frame.columns:
            raise OptionError(
                "derives needs the column 'meta' of a read: it names the message that is the cause"
            )
        return frame.withColumn("meta", F.struct(_extra(keys).alias("extra"))).drop(*_OF_THE_CAUSE)

    return stage


def _extra(keys: tuple[str, ...]) -> Column:
    message_id = F.nullif(F.col("meta.id"), F.lit(""))
    in_a_list = F.to_json(F.array(message_id))
    text = in_a_list.substr(F.lit(2), F.length(in_a_list) - 2)
    nothing = F.create_map().cast("map<string,string>")
    cause = F.when(message_id.isNotNull(), F.create_map(F.lit(CAUSATION_META), text)).otherwise(nothing)
    if not keys:
        return cause
    taken = F.map_filter(F.col("meta.extra"), lambda key, _: key.isin(*keys))
    return F.map_concat(cause, F.coalesce(taken, nothing))
