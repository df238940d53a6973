"""Publish events of a store again: marked as a replay, in the order of each stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark import functions as bq
from babelqueue_spark.connector.options import envelope_options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.exchange.event_table import ORDER
from babelqueue_spark.exchange.routing import Routes
from babelqueue_spark.worker.destinations import Pairs
from babelqueue_spark.worker.messages import BYPASS_HEADER

_TASKS = 8
"""Always as many: the tasks of a repeat have the rows that they had before."""
_LONGEST_KEY = 128
"""Characters that each broker takes."""
_ENVELOPE = "_envelope"


@dataclass(frozen=True)
class Replayed:
    """What a replay did, or would do.

    Attributes:
        version: of the table whose events these are.
        messages: queue → messages; those that a killed run of the same `txn` had published count too.
        unrouted: events without a route, which were left out.
    """

    version: int
    messages: dict[str, int] = field(default_factory=dict)
    unrouted: int = 0


class Replay:
    """How events are published again.

    Args:
        options: those of a write.
        routes: URN patterns and queues; None = all go to the queue that the options name.
        bypass: mark them as a replay.

    Raises:
        OptionError: an option or a route is invalid, there is no queue, or the broker keeps no mark.
    """

    def __init__(self, options: Mapping[str, Any], routes: Pairs | None, *, bypass: bool) -> None:
        self._options = {name: str(value) for name, value in options.items()}
        parsed = envelope_options(self._options, "a replay")
        if routes is None and not parsed.queue:
            raise OptionError("a replay needs queues: give routes, or the option 'queue'")
        self._routes = Routes([("*", parsed.queue[0])] if routes is None else routes)
        with parsed.binding() as binding:
            self._can = binding.capabilities
        if bypass and not self._can.headers:
            raise OptionError(
                f"broker '{parsed.broker}' keeps no headers, which would mark a replay: replay without bypass"
            )
        self._bypass = bypass

    def counts(self, events: DataFrame) -> dict[str | None, int]:
        """Queue → how many messages; None → events without a route."""
        found = events.select(self._queue()).groupBy("queue").count().collect()
        return {row["queue"]: row["count"] for row in found}

    def publish(self, events: DataFrame, transaction: tuple[str, int] | None) -> None:
        """Publish events, those of a stream by one task; a repeated transaction publishes what is missing."""
        options = dict(self._options)
        if transaction is not None:
            options |= {"txnAppId": transaction[0], "txnVersion": str(transaction[1])}
        self._messages(events).write.format("babelqueue").options(**options).mode("append").save()

    def _messages(self, events: DataFrame) -> DataFrame:
        """Columns of a write; each event keeps its id, its trace, its time and the text of its data."""
        routed = events.select("*", self._queue()).where(F.col("queue").isNotNull())
        ordered = routed.repartition(_TASKS, "stream").sortWithinPartitions(
            *(name for name, _ in ORDER), "queue"
        )
        envelopes = ordered.withColumn(_ENVELOPE, bq.decode("body"))
        columns = {
            "job": F.col(f"{_ENVELOPE}.job"),
            "trace_id": F.col(f"{_ENVELOPE}.trace_id"),
            "data": F.col(f"{_ENVELOPE}.data"),
            # Without that of the body, the queue is the one that the message goes to.
            "meta": F.col(f"{_ENVELOPE}.meta").dropFields("queue"),
            "queue": F.col("queue"),
        }
        if self._bypass:
            columns["headers"] = F.create_map(F.lit(BYPASS_HEADER), F.lit("1"))
        if self._can.keys:
            columns["key"] = _key(F.col("stream"))
        return envelopes.select(*(column.alias(name) for name, column in columns.items()))

    def _queue(self) -> Column:
        return F.explode_outer(self._routes.all(F.col("job"))).alias("queue")


def _key(stream: Column) -> Column:
    """Return what keeps a stream's messages in order among several readers."""
    return F.when(F.length(stream) <= _LONGEST_KEY, stream).otherwise(F.sha2(stream, 256))
