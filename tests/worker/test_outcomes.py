"""The table of outcomes, row by row, on live brokers: what a worker does with a message, and its bytes after."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from babelqueue_spark.worker import Counts, Policy, Worker
from tests.brokers import url_of
from tests.streams import publish
from tests.worker.handlers import act, act_later
from tests.worker.queues import lines, order, taken, work_off

pytestmark = pytest.mark.spark

BROKERS = ["sqlite", "redis", "rabbitmq"]
HANDLED = "urn:babel:orders:created"
UNHANDLED = "urn:babel:nobody:knows"

Body = Callable[[str], bytes]


def doing(do: str, attempts: int = 0, **data: Any) -> Body:
    """A message whose handler does so, and that has failed so often."""
    return lambda queue: with_attempts(order(queue, do=do, queue=f"{queue}-replies", **data), attempts)


def unhandled(attempts: int = 0) -> Body:
    return lambda queue: with_attempts(order(queue, urn=UNHANDLED), attempts)


def with_attempts(body: bytes, attempts: int) -> bytes:
    return body.replace(b'"attempts":0', f'"attempts":{attempts}'.encode())


def without(member: bytes) -> Body:
    """An envelope that lacks something, or has it wrong."""
    replaced, _, by = member.partition(b" -> ")
    return lambda queue: order(queue, do="return").replace(replaced, by)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        body: of the message, for a queue.
        outcome, reason: as counted.
        place: where it is afterwards: "" = nowhere, "queue", or "dlq".
        attempts: its count there.
        error, exception: in the dead letter.
        delay: seconds, as published.
        urn: under which it is counted.
    """

    body: Body
    outcome: str
    reason: str | None = None
    place: str = ""
    attempts: int = 0
    error: str | None = None
    exception: str | None = None
    delay: float = 0.0
    urn: str | None = HANDLED


RETRIED: dict[str, Any] = {"outcome": "retried", "reason": "failed", "place": "queue"}
DEAD: dict[str, Any] = {"outcome": "dead_lettered", "place": "dlq"}
DECLINED: dict[str, Any] = {"error": "no money", "exception": "CardDeclinedError"}
REFUSED = "the envelope was refused: "

ANY_STRATEGY = {
    "the handler returns": Case(doing("return"), "acked"),
    "it raises for the first time": Case(doing("raise"), **RETRIED, attempts=1, delay=1.0),
    "it raises for the second time": Case(doing("raise", 1), **RETRIED, attempts=2, delay=2.0),
    "it raises for the last time": Case(doing("raise", 2), **DEAD, reason="failed", attempts=3, **DECLINED),
    "it has failed too often long since": Case(
        doing("raise", 7), **DEAD, reason="failed", attempts=8, **DECLINED
    ),
    "its count is negative": Case(doing("raise", -2), **RETRIED, attempts=-1, delay=1.0),
    "it asks for a retry": Case(doing("retry", after=1.5), **RETRIED, attempts=1, delay=1.5),
    "it asks for a retry at once": Case(doing("retry", after=0), **RETRIED, attempts=1),
    "it asks for a retry too often": Case(
        doing("retry", 2, after=9), **DEAD, reason="failed", attempts=3, error="later", exception="Retry"
    ),
    "it rejects": Case(
        doing("reject"), **DEAD, reason="bad_order", attempts=1, error="no such product", exception="Reject"
    ),
    "it ends the process": Case(doing("exit"), **RETRIED, attempts=1, delay=1.0),
    "it never returns": Case(doing("hang"), **RETRIED, attempts=1, delay=1.0),
    "it returns a message": Case(doing("reply", n=1), "acked"),
    "it returns two": Case(doing("reply twice"), "acked"),
    "it returns one that is no envelope": Case(doing("reply nonsense"), **RETRIED, attempts=1, delay=1.0),
    "it returns one whose key is no text": Case(
        doing("reply with a number as key", n=1), **RETRIED, attempts=1, delay=1.0
    ),
    "it returns half a surrogate pair": Case(
        lambda queue: doing("echo")(queue).replace(b'"do":', b'"text":"\\ud800","do":'),
        **RETRIED,
        attempts=1,
        delay=1.0,
    ),
    "it rejects for a reason that is no text": Case(
        doing("reject with an error"), **RETRIED, attempts=1, delay=1.0
    ),
    "it returns something else": Case(doing("reply a number"), **RETRIED, attempts=1, delay=1.0),
    "not JSON": Case(lambda _: b"hello", **DEAD, reason="poison", error=f"{REFUSED}poison", urn=None),
    "data is a list": Case(
        lambda queue: order(queue).replace(b'"data":{}', b'"data":[1]'),
        **DEAD,
        reason="poison",
        error=f"{REFUSED}poison",
        urn=None,
    ),
    "no URN": Case(without(HANDLED.encode()), **DEAD, reason="poison", error=f"{REFUSED}missing_urn", urn=""),
    "a newer schema version": Case(
        without(b'"schema_version":1 -> "schema_version":2'),
        **DEAD,
        reason="unsupported_schema_version",
        error=f"{REFUSED}unsupported_schema_version",
    ),
    "no attempts": Case(
        without(b',"attempts":0 -> '), **DEAD, reason="invalid_attempts", error=f"{REFUSED}invalid_attempts"
    ),
}
"""What becomes of a message whatever `unknown_urn` says."""

NOBODY: dict[str, Any] = {"reason": "unknown_urn", "urn": UNHANDLED}
BY_STRATEGY = {
    ("fail", "for the first time"): Case(
        unhandled(), outcome="retried", place="queue", attempts=1, delay=1.0, **NOBODY
    ),
    ("fail", "for the last time"): Case(unhandled(2), **DEAD, attempts=3, **NOBODY),
    ("delete", "for the first time"): Case(unhandled(), outcome="dropped", **NOBODY),
    ("release", "for the first time"): Case(
        unhandled(), outcome="released", place="queue", attempts=0, delay=1.0, **NOBODY
    ),
    ("release", "after many attempts"): Case(
        unhandled(9), outcome="released", place="queue", attempts=9, delay=1.0, **NOBODY
    ),
    ("dead_letter", "for the first time"): Case(unhandled(), **DEAD, attempts=0, **NOBODY),
    ("dead_letter", "for the second time"): Case(unhandled(1), **DEAD, attempts=1, **NOBODY),
}
"""What becomes of a message that no handler is for, by strategy."""

CASES = [("fail", name, case) for name, case in ANY_STRATEGY.items()]
CASES += [(strategy, name, case) for (strategy, name), case in BY_STRATEGY.items()]

WAYS = {"": (1, act), "threads": (8, act), "async": (8, act_later)}
"""How many calls are under way, and of which function."""


class Trial:
    """A queue with the messages of one strategy's cases, worked off in one batch."""

    def __init__(self, spark: Any, url: str, strategy: str, folder: Path, way: str) -> None:
        self.queue = f"orders-{folder.name}"
        self.bodies = {name: case.body(self.queue) for wanted, name, case in CASES if wanted == strategy}
        publish(url, self.queue, self.bodies.values())
        worker = Worker(
            {"url": url, "messageLog": str(folder / "messages")},
            state=str(folder / "worker"),
            policy=Policy(backoff=[1, 2], unknown_urn=strategy, release_delay=1),
            handler_timeout=5,
        )
        concurrency, handle = WAYS[way]
        worker.handler("urn:babel:orders:*", concurrency=concurrency)(handle)
        work_off(spark, worker, url, self.queue, folder)
        self.counts: Counts = worker.counts
        self.lines = lines(folder / "messages")
        expected = [case for wanted, _, case in CASES if wanted == strategy]
        self.places = {
            place: taken(url, name, sum(case.place == place for case in expected))
            for place, name in (("queue", self.queue), ("dlq", f"{self.queue}.dlq"))
        }
        self.replies = taken(url, f"{self.queue}-replies", 3 if strategy == "fail" else 0)


@pytest.fixture(scope="module")
def trials(
    spark: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Trial]:
    found: dict[tuple[str, str], Trial] = {}

    def trial(broker: str, strategy: str) -> Trial:
        if (broker, strategy) not in found:
            folder = tmp_path_factory.mktemp(f"{broker}-{strategy}")
            name, _, way = broker.partition("-")
            found[broker, strategy] = Trial(spark, url_of(name, request, folder), strategy, folder, way)
        return found[broker, strategy]

    return trial


def same_message(body: bytes, other: bytes) -> bool:
    """Whether a body is another one's with other attempts, or its record as a dead letter."""
    document = json.loads(body)
    if "raw" in document:
        return document["raw"].encode() == other
    stem, _, _ = body.partition(b',"dead_letter"')
    return without_attempts(stem) == without_attempts(other)


def without_attempts(body: bytes) -> bytes:
    return body.partition(b',"attempts"')[0].rstrip(b"}")


@pytest.mark.parametrize("broker", [*BROKERS, "sqlite-threads", "sqlite-async"])
@pytest.mark.parametrize(
    ("strategy", "name", "case"), CASES, ids=[f"{strategy}: {name}" for strategy, name, _ in CASES]
)
def test_outcome(
    trials: Callable[[str, str], Trial], broker: str, strategy: str, name: str, case: Case
) -> None:
    trial = trials(broker, strategy)
    body = trial.bodies[name]
    [line] = [
        line for line in trial.lines if line.get("body") == body.decode() and line["event"] != "published"
    ]
    assert trial.counts.by[case.urn, case.outcome, case.reason] > 0
    there = {
        place: [found for found in bodies if same_message(found, body)]
        for place, bodies in trial.places.items()
    }
    assert {place for place, found in there.items() if found} == ({case.place} if case.place else set())
    assert line["event"] == EVENTS[case.outcome]
    assert (line.get("reason"), line.get("delay", 0)) == (case.reason, case.delay)
    if not case.place:
        return
    [found] = there[case.place]
    document = json.loads(found)
    if case.place == "queue":
        delays = [
            line["delay"] for line in trial.lines if line.get("body") == found.decode() and "delay" in line
        ]
        assert case.delay in delays
        assert document["attempts"] == case.attempts
        assert document == {**json.loads(body), "attempts": case.attempts}
        return
    block = document["dead_letter"]
    assert block.pop("failed_at") > 1_700_000_000_000
    assert block == {
        "reason": case.reason,
        "error": case.error,
        "exception": case.exception,
        "original_queue": trial.queue,
        "attempts": case.attempts,
        "lang": "python",
    }
    assert document.get("attempts", case.attempts) == case.attempts


EVENTS = {
    "acked": "job.ack",
    "retried": "job.retry",
    "released": "job.released",
    "dropped": "job.dropped",
    "dead_lettered": "job.dead_letter",
}


@pytest.mark.parametrize("broker", BROKERS)
def test_all_are_counted(trials: Callable[[str, str], Trial], broker: str) -> None:
    counts = trials(broker, "fail").counts
    outcomes = [case.outcome for strategy, _, case in CASES if strategy == "fail"]
    assert counts.read == len(outcomes)
    assert (counts.acked, counts.retried, counts.dead_lettered) == tuple(
        outcomes.count(outcome) for outcome in ("acked", "retried", "dead_lettered")
    )
    assert (counts.released, counts.dropped, counts.duplicates, counts.published) == (0, 0, 0, 3)


@pytest.mark.parametrize("broker", BROKERS)
def test_replies_continue_the_trace(trials: Callable[[str, str], Trial], broker: str) -> None:
    trial = trials(broker, "fail")
    replies = [json.loads(body) for body in trial.replies]
    asked = {
        json.loads(trial.bodies[name])["trace_id"] for name in ("it returns a message", "it returns two")
    }
    assert {reply["trace_id"] for reply in replies} == asked
    assert len({reply["meta"]["id"] for reply in replies}) == 3
    assert sorted(json.dumps(reply["data"]) for reply in replies) == [
        '{"part": 0}',
        '{"part": 1}',
        '{"to": 1}',
    ]


def test_messages_without_a_handler_are_told_once(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = {"url": f"sqlite:///{tmp_path}/queue.db", "queue": "orders"}
    worker = Worker(queue, state=str(tmp_path / "worker"), policy=Policy(unknown_urn="delete"))
    worker.handler("urn:babel:orders:createt")(act)
    publish(queue["url"], "orders", [order("orders"), order("orders", urn=UNHANDLED)])
    for _ in range(2):
        worker.run(spark.read.format("babelqueue").options(**queue).load())
    [line] = [each.getMessage() for each in caplog.records if "handler.missing" in each.getMessage()]
    assert json.loads(line.partition(" ")[2]) == {
        "urns": [UNHANDLED, HANDLED],
        "nearest": {HANDLED: "urn:babel:orders:createt"},
        "handlers": ["urn:babel:orders:createt"],
    }
