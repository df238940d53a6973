"""What Spark's progress says of a batch that reads queues or logs through the connector."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

TOTAL_PHASE = "triggerExecution"
"""What Spark calls the whole of a trigger among its phases."""

_JOURNAL = ("segments", "bytes", "redelivered", "unacknowledged", "held_segments", "held_bytes")


@dataclass(frozen=True)
class Batch:
    """One batch of a query.

    Attributes:
        run: id of the query's run.
        query: its name; its id where it has none.
        number: Spark's number of the batch.
        rows: rows that Spark read.
        written: rows that the sink wrote; None where it does not tell.
        seconds: phase → seconds.
        backlog: queue → messages that waited when the batch was planned; of a log, those behind the batch.
        planned: queue → most messages that the batch claims.
        journal: sums over all journals of the query of what their owners have counted; empty on PySpark 4.1.
    """

    run: str
    query: str
    number: int
    rows: int
    written: int | None
    seconds: Mapping[str, float]
    backlog: Mapping[str, int] = field(default_factory=dict)
    planned: Mapping[str, int] = field(default_factory=dict)
    journal: Mapping[str, int] = field(default_factory=dict)


def batch_of(progress: StreamingQueryProgress) -> Batch | None:
    """Read a progress; None where none of the query's sources is the connector's."""
    ends = [(_parsed(source.endOffset), _parsed(source.latestOffset)) for source in progress.sources]
    ours = [(end, latest) for end, latest in ends if _is_ours(end)]
    if not ours:
        return None
    backlog, planned, journal = Counter[str](), Counter[str](), Counter[str]()
    for end, latest in ours:
        backlog.update(latest.get("backlog") or latest.get("lag") or end.get("backlog") or {})
        planned.update({read["queue"]: read["messages"] for read in end.get("reads", ())})
        journal.update({name: count for name, count in latest.get("journal", {}).items() if name in _JOURNAL})
    written = progress.sink.numOutputRows
    return Batch(
        run=str(progress.runId),
        query=progress.name or str(progress.id),
        number=progress.batchId,
        rows=progress.numInputRows,
        written=None if written is None or written < 0 else written,
        seconds={phase: millis / 1000 for phase, millis in progress.durationMs.items()},
        backlog=backlog,
        planned=planned,
        journal=journal,
    )


def _is_ours(offset: Mapping[str, Any]) -> bool:
    return "version" in offset and ("journal" in offset or "offsets" in offset)


def _parsed(offset: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(offset or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
