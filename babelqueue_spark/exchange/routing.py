"""Routes: URN patterns and the queues where their messages go."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.functions import urn_matches
from babelqueue_spark.worker.destinations import Pairs, best_first, checked_routes


class Routes:
    """Pairs of a URN pattern, in which `*` stands for any text, and a queue or several.

    Raises:
        OptionError: there is none, or one lacks its pattern or its queue.
    """

    def __init__(self, pairs: Pairs) -> None:
        self._routes = checked_routes(pairs)

    def best(self, job: Column) -> Column:
        """Return the queue of an exact URN, else of the pattern with most characters besides `*`; or null.

        Of two patterns with as many, the one that was given first.
        """
        return F.coalesce(*(_queue(job, pattern, queue) for pattern, queue in best_first(self._routes)))

    def all(self, job: Column) -> Column:
        """Return each queue with a pattern that matches, once, in the order of the routes."""
        queues = F.array(*(_queue(job, pattern, queue) for pattern, queue in self._routes))
        return F.array_distinct(F.array_compact(queues))


def matching(job: Column, pattern: str) -> Column:
    """Return whether a URN matches; false where there is none."""
    if pattern == "*":
        return job.isNotNull()
    if "*" not in pattern:
        return F.coalesce(job == pattern, F.lit(False))
    return F.coalesce(urn_matches(job, pattern), F.lit(False))


def job_of(frame: DataFrame) -> Column:
    """Return the URN of each row, null where it is empty or not there."""
    return F.coalesce(text_of(frame, "job"), text_of(frame, "urn"))


def text_of(frame: DataFrame, name: str) -> Column:
    """Return a column as text, null where it is empty or not there."""
    if name not in frame.columns:
        return F.lit(None).cast("string")
    return F.nullif(F.col(name).cast("string"), F.lit(""))


def _queue(job: Column, pattern: str, queue: str) -> Column:
    return F.when(matching(job, pattern), F.lit(queue))
