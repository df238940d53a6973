"""Claimed messages on shared storage, so that Spark can read again what a queue has forgotten."""

from babelqueue_spark.journal.journal import CLOCK_SKEW, Holding, Identities, Journal, Segment, State
from babelqueue_spark.journal.stores import FsspecStore, LocalStore, Store, open_store

__all__ = [
    "CLOCK_SKEW",
    "FsspecStore",
    "Holding",
    "Identities",
    "Journal",
    "LocalStore",
    "Segment",
    "State",
    "Store",
    "open_store",
]
