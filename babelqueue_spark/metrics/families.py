"""All metrics, as data: the page of metrics is made from it, and alert rules are compared with it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Family:
    """A metric, by the name that Prometheus shows; `doc` is a sentence without a full stop."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    doc: str


_QUERY = ("query",)
_QUEUE = ("broker", "queue")

MESSAGES = Family(
    "babelqueue_messages_total",
    "counter",
    _QUERY,
    "Messages read, as Spark counts rows: twice where a batch is read twice",
)
ROWS_WRITTEN = Family(
    "babelqueue_rows_written_total", "counter", _QUERY, "Rows written, by sinks that tell it"
)
BACKLOG = Family(
    "babelqueue_backlog_messages",
    "gauge",
    ("query", "queue"),
    "Messages that waited when the last batch was planned (of a log, those behind it); 0 while it is idle",
)
BATCH_SECONDS = Family(
    "babelqueue_batch_duration_seconds", "histogram", _QUERY, "Time from the trigger of a batch to its end"
)
PHASE_SECONDS = Family(
    "babelqueue_batch_phase_seconds_total",
    "counter",
    ("query", "phase"),
    "Time in each phase of batches, by Spark's names: latestOffset, queryPlanning, addBatch and others",
)
LAST_BATCH = Family(
    "babelqueue_last_batch_timestamp_seconds", "gauge", _QUERY, "When the last batch ended, since 1970"
)
ACTIVE = Family("babelqueue_query_active", "gauge", _QUERY, "1 while the query runs, 0 when it has ended")
FAILURES = Family("babelqueue_query_failures_total", "counter", _QUERY, "Queries that ended with an error")
REDELIVERIES = Family(
    "babelqueue_redeliveries_total",
    "counter",
    _QUERY,
    "Redeliveries of journalled messages that were recognised and dropped",
)
UNACKNOWLEDGED = Family(
    "babelqueue_unacknowledged_total",
    "counter",
    _QUERY,
    "Messages whose claim had lapsed before they were acknowledged",
)
SEGMENTS = Family(
    "babelqueue_journal_segments_written_total", "counter", _QUERY, "Segments of finished batches"
)
SEGMENT_BYTES = Family(
    "babelqueue_journal_bytes_written_total",
    "counter",
    _QUERY,
    "Bytes of those segments: messages, headers and what brokers say, compressed",
)
HELD_SEGMENTS = Family(
    "babelqueue_journal_segments", "gauge", _QUERY, "Segments in the journal when the last batch ended"
)
HELD_BYTES = Family("babelqueue_journal_bytes", "gauge", _QUERY, "Bytes of those segments")
WORKED = Family(
    "babelqueue_worker_messages_total",
    "counter",
    ("urn", "outcome", "reason"),
    "Messages that workers ended: acked, retried, released, dropped or dead_lettered, and why",
)
PUBLISHED = Family(
    "babelqueue_worker_published_total",
    "counter",
    ("urn",),
    "Messages that handlers and subscribers returned",
)
WAITING = Family(
    "babelqueue_queue_messages", "gauge", _QUEUE, "Messages that wait in a watched queue, at the last poll"
)
OLDEST = Family(
    "babelqueue_queue_oldest_message_age_seconds",
    "gauge",
    _QUEUE,
    "For how long the next message of a watched queue has waited, 0 if there is none; where the broker tells",
)
DEAD_LETTERS = Family(
    "babelqueue_dead_letter_queue_messages",
    "gauge",
    _QUEUE,
    "Messages in the dead-letter queue of a watched queue, at the last poll",
)
POLL_FAILURES = Family(
    "babelqueue_poll_failures_total",
    "counter",
    _QUEUE,
    "Polls of a watched queue that failed; its gauges are absent until one succeeds",
)

FAMILIES = tuple(each for each in globals().values() if isinstance(each, Family))
