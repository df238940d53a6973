"""Decisions without Spark and without a broker: what opens when, and what a failure to encode changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.worker import IdempotencyStore, Message, Outgoing, Record
from babelqueue_spark.worker.deciding import Decisions, Output
from babelqueue_spark.worker.destinations import Destinations
from babelqueue_spark.worker.handlers.routes import MessageHandler
from babelqueue_spark.worker.outcomes import Failure, Outcome, acked
from babelqueue_spark.worker.outgoing import encode_outputs
from babelqueue_spark.worker.rows import Rows
from tests.worker.partitions import decided, policy, rows_of

POLICY = policy(max_attempts=2)


class Standing(IdempotencyStore):
    """Answers every claim with the same standing."""

    lease = 60

    def __init__(self, standing: Any) -> None:
        self.standing = standing

    def claim(self, ids: Sequence[str], owner: str) -> list[Record]:
        return [Record(self.standing) for _ in ids]

    def remember(self, message_id: str, owner: str, result: bytes = b"") -> None: ...

    def release(self, ids: Sequence[str], owner: str) -> None: ...

    def forget(self, ids: Sequence[str]) -> None: ...

    def close(self) -> None: ...


class Opened:
    """Handlers whose `partition_setup` is counted."""

    def __init__(self) -> None:
        self.times = 0

    @contextmanager
    def setup(self) -> Iterator[str]:
        self.times += 1
        yield "resource"

    def decide(self, rows: Rows, store: IdempotencyStore | None) -> Decisions:
        def handle(message: Message, resource: str) -> Outgoing:
            return Outgoing(job="urn:reply", data={"with": resource}, queue=f"{message.queue}-replies")

        known = MessageHandler("urn:known", handle, partition_setup=self.setup)
        return decided(rows, known, store=store, policy=POLICY)


def test_a_resource_is_opened_once_for_all_messages_of_its_handler() -> None:
    opened = Opened()
    decisions = opened.decide(rows_of("urn:known", "urn:other", "urn:known"), Standing("granted"))
    assert [verdict.outcome for verdict in decisions.verdicts] == ["acked", "retried", "acked"]
    assert [output.row for output in decisions.outputs] == [0, 2]
    assert opened.times == 1


@pytest.mark.parametrize(("standing", "outcome"), [("handled", "dropped"), ("held", "released")])
def test_what_is_not_handled_opens_no_resource(standing: str, outcome: str) -> None:
    opened = Opened()
    decisions = opened.decide(rows_of("urn:known", "urn:known"), Standing(standing))
    assert {verdict.outcome for verdict in decisions.verdicts} == {outcome}
    assert opened.times == 0


def test_a_claim_that_lapses_while_a_resource_is_opened_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("babelqueue_spark.worker.admission.time.monotonic", lambda: now)
    store = Standing("granted")

    class Slow(Opened):
        @contextmanager
        def setup(self) -> Iterator[str]:
            nonlocal now
            now += store.lease
            store.standing = "held"  # another worker has claimed it meanwhile
            yield "resource"

    decisions = Slow().decide(rows_of("urn:known"), store)
    assert decisions.verdicts[0].outcome is Outcome.RELEASED


@pytest.mark.parametrize("headers", [{"x": "1"}, [["x", "1"]], None])
def test_what_a_store_kept_is_published_as_it_was_returned(headers: Any) -> None:
    columns = {"job": "urn:reply", "data": "{}", "queue": "replies", "trace_id": "t", "headers": headers}
    kept = json.loads(json.dumps(columns))
    options = write_options({"url": "redis://127.0.0.1:1"})
    with options.binding() as binding:
        [batch], failures = encode_outputs([Output(0, kept)], IdSource("run"), Destinations(options, binding))
    assert not failures
    assert batch.column("headers").to_pylist() == [[("x", "1")] if headers else None]


def test_what_cannot_be_encoded_fails_its_row_and_no_other() -> None:
    columns = {"job": "urn:reply", "data": "{}", "queue": "replies", "trace_id": "t"}
    outputs = (
        Output(0, columns),
        Output(1, columns),
        Output(1, {**columns, "data": "["}),
        Output(2, columns),
    )
    options = write_options({"url": "sqlite:////nowhere/q.db"})
    with options.binding() as binding:
        batches, failures = encode_outputs(outputs, IdSource("run"), Destinations(options, binding))
    assert sum(batch.num_rows for batch in batches) == 2
    assert [*failures] == [1]
    assert isinstance(failures[1], BabelQueueError)

    before = Decisions((acked(0),) * 3, outputs)
    failed = POLICY.failed(0, Failure.of(failures[1]))
    after = before.with_failures({1: failed})
    assert after == Decisions((acked(0), failed, acked(0)), (outputs[0], outputs[3]))
    assert before.rows_with(Outcome.ACKED) == [0, 1, 2]
    assert after.rows_with(Outcome.ACKED) == [0, 2]


def test_decisions_are_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Decisions(()).verdicts = (acked(0),)  # type: ignore[misc]
