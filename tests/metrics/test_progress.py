"""What is read out of Spark's progress, in the forms that its versions and our sources give it."""

from __future__ import annotations

import json
from typing import Any

from babelqueue_spark.metrics.batch_log import facts
from babelqueue_spark.metrics.progress import Batch, batch_of

PLAN = {"version": 1, "journal": "7f1a", "batch": 2, "backlog": {"orders": 5}}
READS = [{"queue": "orders", "partitions": 1, "messages": 3, "bytes": 9}]


def told(*sources: tuple[Any, Any], **changes: Any) -> Batch | None:
    """The batch of a progress whose sources have these end and latest offsets."""
    progress = {
        "id": "11111111-1111-1111-1111-111111111111",
        "runId": "22222222-2222-2222-2222-222222222222",
        "name": None,
        "timestamp": "2026-11-24T08:27:03.185Z",
        "batchId": 7,
        "batchDuration": 1168,
        "numInputRows": 3,
        "durationMs": {"addBatch": 777, "triggerExecution": 1167},
        "stateOperators": [],
        "sources": [
            {
                "description": "",
                "startOffset": None,
                "endOffset": end,
                "latestOffset": latest,
                "numInputRows": 3,
            }
            for end, latest in sources
        ],
        "sink": {"description": "", "numOutputRows": -1},
        **changes,
    }
    for each in progress["sources"]:
        each |= {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    return batch_of(json.dumps(progress))


def test_queues_of_all_sources_are_added_up() -> None:
    counted = {"segments": 1, "bytes": 10, "redelivered": 0, "unacknowledged": 0}
    orders = ({**PLAN, "reads": READS}, {"backlog": {"orders": 5}, "total": 5, "tally": counted})
    mails = ({**PLAN, "reads": []}, {"backlog": {"mails": 2}, "total": 2, "tally": counted})
    found = told(orders, mails, ({"orders-0": 3}, {"orders-0": 9}), ("a text", "a text"))
    assert found is not None
    assert (found.backlog, found.planned) == ({"orders": 5, "mails": 2}, {"orders": 3})
    assert (found.journal["segments"], found.journal["bytes"]) == (2, 20)
    assert (found.query, found.rows, found.written) == ("11111111-1111-1111-1111-111111111111", 3, None)
    assert found.seconds == {"addBatch": 0.777, "triggerExecution": 1.167}


def test_without_admission_control_the_plan_has_the_backlog() -> None:
    """PySpark 4.1 shows the offset itself as the latest one."""
    found = told(({**PLAN, "reads": READS}, PLAN), name="orders")
    assert found is not None
    assert (found.query, found.backlog, found.journal) == ("orders", {"orders": 5}, {})
    assert "before" not in facts(found, found)


def test_of_a_log_what_is_behind_the_batch_counts() -> None:
    end = {"version": 1, "offsets": {"orders": {"0": 10}}}
    found = told((end, {**end, "lag": {"orders": 90}, "total": 90}))
    assert found is not None
    assert (found.backlog, found.planned) == ({"orders": 90}, {})


def test_queries_of_others_have_no_batch() -> None:
    assert told(({"orders": {"0": 3}}, {"orders": {"0": 9}}), (4, 5), (None, None)) is None


def test_a_line_says_what_the_journal_counted_of_the_batch_before() -> None:
    plan = {**PLAN, "reads": READS}
    first = told((plan, {"backlog": {"orders": 5}, "tally": dict.fromkeys(NAMES, 1)}), batchId=7)
    second = told((plan, {"backlog": {"orders": 2}, "tally": dict.fromkeys(NAMES, 5)}), batchId=8)
    assert first is not None
    assert second is not None
    assert facts(second, first)["before"] == {
        "batch": 7,
        "claimed": 3 + 4,
        "fresh": 3,
        "redelivered": 4,
        "unacknowledged": 4,
        "segments": 4,
        "bytes": 4,
    }


NAMES = ("segments", "bytes", "redelivered", "unacknowledged", "held_segments", "held_bytes")
