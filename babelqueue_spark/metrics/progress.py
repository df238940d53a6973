"""What Spark's progress says of a batch that reads queues or logs through the connector."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOTAL_PHASE = "triggerExecution"
"""What Spark calls the whole of a trigger among its phases."""


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


def batch_of(progress: str) -> Batch | None:
    """Read the JSON of a progress; None where none of the query's sources is the connector's."""
    told = json.loads(progress)
    ours = [source for source in told["sources"] if _is_ours(source.get("endOffset"))]
    if not ours:
        return None
    backlog, planned, journal = Counter[str](), Counter[str](), Counter[str]()
    for source in ours:
        end, latest = source["endOffset"], source.get("latestOffset") or {}
        backlog.update(latest.get("backlog") or latest.get("lag") or end.get("backlog") or {})
        planned.update({read["queue"]: read["messages"] for read in end.get("reads", ())})
        journal.update(latest.get("tally", {}))
    written = told["sink"].get("numOutputRows", -1)
    return Batch(
        run=told["runId"],
        query=told.get("name") or told["id"],
        number=told["batchId"],
        rows=told["numInputRows"],
        written=written if written >= 0 else None,
        seconds={phase: millis / 1000 for phase, millis in told["durationMs"].items()},
        backlog=backlog,
        planned=planned,
        journal=journal,
    )


def _is_ours(offset: Any) -> bool:
    return isinstance(offset, dict) and "version" in offset and ("journal" in offset or "offsets" in offset)
