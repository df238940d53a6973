"""Claimed messages on shared storage, so that Spark can read again what a queue has forgotten."""

from babelqueue_spark.deprecated import renamed
from babelqueue_spark.journal.journal import Journal, State, Tally
from babelqueue_spark.journal.segments import (
    CLOCK_SKEW,
    AckRecord,
    FromQueue,
    Identities,
    Segment,
    SegmentContent,
    SegmentState,
    names_of,
)
from babelqueue_spark.journal.stores import LocalStore, Store, Survey, is_object_store, open_store

__all__ = [
    "CLOCK_SKEW",
    "AckRecord",
    "FromQueue",
    "Identities",
    "Journal",
    "LocalStore",
    "Segment",
    "SegmentContent",
    "SegmentState",
    "State",
    "Store",
    "Survey",
    "Tally",
    "is_object_store",
    "names_of",
    "open_store",
]

__getattr__ = renamed(__name__, {"Holding": "babelqueue_spark.journal:SegmentContent"})
