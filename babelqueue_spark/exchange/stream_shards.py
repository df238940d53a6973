"""Streams of events as columns of Spark."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.exchange.stream_ids import MOST_SHARDS, checked_shards


def stream_shard(stream: Column | str, shards: int = MOST_SHARDS) -> Column:
    """Return the shard of a stream's id, two hex digits, for the partitions of streams that grow too large.

        F.concat_ws(":", F.lit("acme:votes:2026-11"), stream_shard("voter", 16))  # acme:votes:2026-11:0a

    Args:
        stream: a column of text, such as an id; a string names a column.
        shards: how many there are, 256 at most.

    Raises:
        OptionError: there are fewer than one or more than 256 shards.
    """
    most = checked_shards(shards)
    text = F.col(stream) if isinstance(stream, str) else stream
    number = F.conv(F.substring(F.md5(text.cast("string").cast("binary")), 1, 8), 16, 10).cast("bigint")
    return F.lpad(F.lower(F.hex(F.pmod(number, F.lit(most)))), 2, "0")
