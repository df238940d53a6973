"""The published SDK and the connector on one Redis: each reads what the other wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from babelqueue import BabelQueue

from tests.streams import backlog, drain

pytestmark = pytest.mark.spark

URN = "urn:babel:orders:created"
PAYLOADS: list[dict[str, Any]] = [
    {"order_id": 1, "amount": 99.9},
    {"text": 'größe / "quoted" \\ \u2028 \x00 🚀', "empty": {}, "list": []},
    {"big": 2**62, "small": -(2**62), "float": 1e21, "none": None, "nested": {"a": [{"b": True}]}},
    {},
]


def test_messages_of_the_sdk_come_out_equal(
    spark: Any, redis_server: Any, queue: str, tmp_path: Path
) -> None:
    app = BabelQueue(redis_server.url, queue=queue)
    ids = [app.publish(URN, payload, trace_id=f"trace-{n}") for n, payload in enumerate(PAYLOADS)]
    app.publish_with_headers(URN, {"n": 1}, {"traceparent": "00-ab-cd-01"}, queue=queue, trace_id=None)
    [rows] = drain(spark, redis_server.url, queue, tmp_path)
    assert [row.error for row in rows] == [None] * 5
    assert [json.loads(row.data) for row in rows] == [*PAYLOADS, {"n": 1}]
    assert [row.meta.id for row in rows[:4]] == ids
    assert [row.trace_id for row in rows[:4]] == [f"trace-{n}" for n in range(4)]
    assert {
        (row.job, row.meta.lang, row.meta.queue, row.meta.schema_version, row.attempts) for row in rows
    } == {(URN, "python", queue, 1, 0)}
    assert rows[4].headers == {"traceparent": "00-ab-cd-01"}


def test_messages_of_ours_are_handled_by_the_sdk(spark: Any, redis_server: Any, queue: str) -> None:
    rows = [
        (URN, json.dumps(payload, ensure_ascii=False), f"trace-{n}") for n, payload in enumerate(PAYLOADS)
    ]
    spark.createDataFrame(rows, "job string, data string, trace_id string").coalesce(1).write.format(
        "babelqueue"
    ).options(url=redis_server.url, queue=queue).mode("append").save()
    app = BabelQueue(redis_server.url, queue=queue)
    handled: list[tuple[Any, Any]] = []

    @app.handler(URN)
    def handle(data: dict[str, Any], meta: dict[str, Any]) -> None:
        handled.append((data, meta))

    app.consume(queue, max_messages=len(PAYLOADS), timeout=1.0, handle_signals=False)
    assert [data for data, _ in handled] == PAYLOADS
    assert all(meta["schema_version"] == 1 and meta["queue"] == queue for _, meta in handled)
    assert backlog(redis_server.url, queue) == 0


def test_a_retry_of_the_sdk_is_read_with_its_attempts(
    spark: Any, redis_server: Any, queue: str, tmp_path: Path
) -> None:
    app = BabelQueue(redis_server.url, queue=queue, max_attempts=5)

    @app.handler(URN)
    def handle(data: dict[str, Any], meta: dict[str, Any]) -> None:
        raise RuntimeError("not today")

    app.publish(URN, {"n": 1})
    app.consume(queue, max_messages=2, timeout=1.0, handle_signals=False)
    [[row]] = drain(spark, redis_server.url, queue, tmp_path)
    assert (row.attempts, row.error) == (2, None)
