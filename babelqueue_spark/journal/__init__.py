"""Claimed messages on shared storage, so that Spark can read again what a queue has forgotten.

Readers write segments and read them back; `storage` keeps the files. It knows deliveries, but no broker.
"""

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

__all__ = [
    "CLOCK_SKEW",
    "AckRecord",
    "FromQueue",
    "Identities",
    "Journal",
    "Segment",
    "SegmentContent",
    "SegmentState",
    "State",
    "Tally",
    "names_of",
]
