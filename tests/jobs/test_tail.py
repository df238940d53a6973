"""The job tail: a queue as it comes, without consuming it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from babelqueue_spark.jobs import tail
from babelqueue_spark.schemas.sensitive import MARK
from tests.catalog.registries import FORMS, SECRET, STRAYED, registry, strayed
from tests.jobs.conftest import Run
from tests.streams import backlog, envelope, publish


def test_the_last_messages(sqlite: str, queue: str, run: Run) -> None:
    publish(sqlite, queue, [*(envelope(n, queue) for n in range(5)), b"bad\x1b[31m"])
    done = run("tail", "--url", sqlite, "--queue", queue, "--lines", "3")
    assert (done.code, done.err) == (0, "")
    first, second, bad = done.out.splitlines()
    assert '{"order_id":3}' in first
    assert '{"order_id":4}' in second
    assert "poison" in bad
    assert "\x1b" not in done.out
    assert backlog(sqlite, queue) == 6


def test_as_json(sqlite: str, queue: str, run: Run) -> None:
    body = envelope(1, queue)
    publish(sqlite, queue, [body])
    row = json.loads(run("tail", "--url", sqlite, "--queue", queue, "--json").out)
    assert row["body"] == body.decode()
    assert row["meta"]["queue"] == row["queue"] == queue


def test_an_empty_payload_of_php_is_valid_with_its_option(sqlite: str, queue: str, run: Run) -> None:
    publish(sqlite, queue, [envelope(1, queue).replace(b'{"order_id":1}', b"[]")])
    words = ("tail", "--url", sqlite, "--queue", queue)
    assert "poison" in run(*words).out
    assert "poison" not in run(*words, "--option", "allowEmptyListData=true").out


def test_sensitive_fields_are_masked(sqlite: str, queue: str, run: Run, tmp_path: Path) -> None:
    marked = {"properties": {"order_id": {MARK: True}}}
    catalog = registry(tmp_path, {"urn:babel:orders:created": marked, "urn:babel:orders:paid": {}})
    other = envelope(8, queue, job="urn:babel:orders:paid")
    unknown = envelope(7000, queue, job="urn:babel:orders:created:v2")
    marked_order = envelope(7000, queue)
    publish(sqlite, queue, [marked_order, other, unknown, b"secret 7000"])
    options = ["--option", f"catalog={catalog}", "--json"]
    masked, shown, hidden, bad = map(
        json.loads, run("tail", "--url", sqlite, "--queue", queue, *options).out.splitlines()
    )
    assert masked["data"] == '{"order_id":"***"}'
    assert json.loads(masked["body"]) == {**json.loads(marked_order), "data": {"order_id": "***"}}
    assert shown["data"] == '{"order_id":8}'
    assert hidden["data"] == bad["data"] == bad["body"] == "***"
    assert "7000" not in run("tail", "--url", sqlite, "--queue", queue, *options[:2]).out


def test_values_where_a_container_of_sensitive_fields_belongs_are_masked(
    sqlite: str, queue: str, run: Run, tmp_path: Path
) -> None:
    publish(sqlite, queue, strayed())
    given = ["--url", sqlite, "--queue", queue, "--lines", "100", "--json"]
    shown = run("tail", *given, "--option", f"catalog={registry(tmp_path, FORMS)}").out
    assert len(shown.splitlines()) == len(STRAYED)
    assert SECRET not in shown


def test_it_follows(sqlite: str, queue: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes between two looks is shown once, a repeat of the same bytes included."""
    body = envelope(1, queue)
    publish(sqlite, queue, [body])
    arrivals = iter([[body, envelope(2, queue)], []])

    def sleep(_: float) -> None:
        bodies = next(arrivals, None)
        if bodies is None:
            raise KeyboardInterrupt
        publish(sqlite, queue, bodies)

    monkeypatch.setattr(tail, "sleep", sleep)
    done = run("tail", "--url", sqlite, "--queue", queue, "--follow")
    assert done.code == 130
    assert [line.rpartition(" ")[2] for line in done.out.splitlines()] == [
        '{"order_id":1}',
        '{"order_id":1}',
        '{"order_id":2}',
    ]


def test_a_broker_that_cannot_be_browsed(run: Run) -> None:
    done = run("tail", "--url", "sqs://eu-west-1", "--queue", "orders")
    assert done.code == 1
    assert "without consuming" not in done.out


def test_several_queues(sqlite: str, tmp_path: Path, run: Run) -> None:
    publish(sqlite, "a", [envelope(1, "a")])
    publish(sqlite, "b", [envelope(2, "b")])
    assert len(run("tail", "--url", sqlite, "--queue", "a,b").out.splitlines()) == 2
