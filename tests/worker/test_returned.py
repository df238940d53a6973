"""What handlers return: the queue that it goes to, what it says of itself, and what a responder's becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.errors import OptionError
from babelqueue_spark.exchange import Exchange
from babelqueue_spark.testing.requests import reply_of
from babelqueue_spark.worker import Cancel, Message, Outgoing, Publishing, Worker
from babelqueue_spark.worker.deciding import Output
from babelqueue_spark.worker.decisions import OUTGOING_MESSAGES, LogEntry
from babelqueue_spark.worker.destinations import Destinations, best_first, checked_routes
from babelqueue_spark.worker.handlers.responder import REQUEST_FAILED
from babelqueue_spark.worker.messages import outgoing_rows
from babelqueue_spark.worker.outgoing import encode_outputs
from tests.streams import publish
from tests.worker.queues import order, taken, work_off

ROUTES = {
    "*": "rest",
    "urn:babel:orders:*": ["billing", "audit"],
    "urn:babel:orders:paid": "paid",
    "urn:babel:*:paid": "late",
}
REDIS = {"url": "redis://127.0.0.1:1"}
SQLITE = {"url": "sqlite:////nowhere/queue.db"}


def message(**headers: str) -> Message:
    body = order("orders", n=1)
    meta_id = json.loads(body)["meta"]["id"]
    return Message("urn:babel:orders:created", "trace", meta_id, 0, "orders", body, headers, None)


def encoded(
    routes: Mapping[str, Any], *returned: Outgoing, **options: str
) -> tuple[dict[str, list[dict[str, Any]]], dict[int, Any]]:
    """Queue → envelopes, and row → error."""
    handled, given = message(), write_options({**REDIS, **options})
    outputs = [
        Output(row, columns)
        for row, each in enumerate(returned)
        for columns in outgoing_rows(each, handled, headers=True, context=dict)
    ]
    with given.binding() as binding:
        destinations = Destinations(given, binding, best_first(checked_routes(routes)) if routes else ())
        batches, failures = encode_outputs(outputs, IdSource("run"), destinations)
    found = {
        batch.column("queue")[0].as_py(): [json.loads(body) for body in batch.column("body").to_pylist()]
        for batch in batches
    }
    return found, failures


# -- queues ------------------------------------------------------------------------------------------------


def test_a_message_without_a_queue_goes_by_the_best_route() -> None:
    found, failures = encoded(
        ROUTES,
        Outgoing(job="urn:babel:orders:paid", data={}),
        Outgoing(job="urn:babel:orders:sent", data={}),
        Outgoing(job="urn:other", data={}),
        Outgoing(job="urn:babel:orders:paid", data={}, queue="named"),
        queue="default",
    )
    assert failures == {}
    assert {queue: [each["job"] for each in of] for queue, of in found.items()} == {
        "paid": ["urn:babel:orders:paid"],
        "billing": ["urn:babel:orders:sent"],
        "rest": ["urn:other"],
        "named": ["urn:babel:orders:paid"],
    }


def test_publishing_shows_its_routes_and_keeps_them_in_a_copy() -> None:
    given = Publishing(routes={"urn:*": ["rest", "audit"], "urn:a": "a"})
    assert given.routes == (("urn:a", "a"), ("urn:*", "rest"), ("urn:*", "audit"))
    assert replace(given, context=("tenant",)).best_routes == given.best_routes
    assert hash(given) == hash(replace(given))


@pytest.mark.parametrize(
    ("queue", "text"), [("", "is empty"), (" ", "is empty"), ("q" * 300, "255 characters")]
)
def test_failures_of_subscribers_go_to_what_can_be_a_queue(queue: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=text):
        Worker(SQLITE, state=str(tmp_path), publishing=Publishing(failure_queue=queue))


@pytest.mark.parametrize("given", [{"policy": {"max_attempts": 5}}, {"policy": None}, {"publishing": {}}])
def test_a_group_of_arguments_of_another_class_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"takes a (Policy|Publishing), not a (dict|NoneType)"):
        Worker(REDIS, state=str(tmp_path), **given)


@pytest.mark.spark
def test_it_goes_where_an_exchange_sends_it(spark: Any) -> None:
    urns = ["urn:babel:orders:paid", "urn:babel:orders:sent", "urn:babel:mail:paid", "urn:other"]
    frame = spark.createDataFrame([(urn, "{}") for urn in urns], "job STRING, data STRING")
    sent = {row.job: row.queue for row in Exchange(REDIS, ROUTES).send(frame).collect()}
    routes = best_first(checked_routes(ROUTES))
    with (given := write_options(REDIS)).binding() as binding:
        destinations = Destinations(given, binding, routes)
        assert {urn: destinations.queue_of({"job": urn, "queue": None}) for urn in urns} == sent


def test_without_a_route_it_goes_where_the_options_say() -> None:
    routes = {"urn:babel:*": "routed"}
    found, failures = encoded(routes, Outgoing(job="urn:other", data={}), queue="default")
    assert (list(found), failures) == (["default"], {})


@pytest.mark.parametrize(
    ("routes", "why"), [({"urn:babel:*": "routed"}, "no route of 'urn:babel:\\*' matches"), ({}, "no routes")]
)
def test_without_a_queue_its_message_has_failed_and_no_other(routes: dict[str, str], why: str) -> None:
    found, failures = encoded(
        routes, Outgoing(job="urn:other", data={}), Outgoing(job="urn:other", data={}, queue="named")
    )
    assert list(found) == ["named"]
    assert [*failures] == [0]
    with pytest.raises(OptionError, match=f"'urn:other' without a queue, and .*{why}.*: give the Outgoing"):
        raise failures[0]


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ({}, "routes take URN patterns"),
        ({"urn:*": ""}, "routes take URN patterns"),
        ({"urn:*": ["fine", "line\nbreak"]}, "is not the name of a queue"),
    ],
)
def test_routes_to_no_queue_are_refused(routes: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=text):
        Worker(REDIS, state=str(tmp_path), publishing=Publishing(routes=routes))


@pytest.mark.spark
def test_a_worker_routes_what_its_handlers_return(spark: Any, tmp_path: Path, queue: str) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publishing = Publishing(routes={"urn:babel:orders:*": "routed"})
    worker = Worker({"url": url}, state=str(tmp_path / "worker"), publishing=publishing)

    @worker.handler("*")
    def handle(message: Message) -> Outgoing:
        return Outgoing(job=message.data["to"], data={}, meta={"tenant": "é"})

    publish(url, queue, [order(queue, to="urn:babel:orders:paid")])
    work_off(spark, worker, url, queue, tmp_path)
    [body] = taken(url, "routed", 1)
    assert json.loads(body)["meta"]["tenant"] == "é"


# -- the schedule ------------------------------------------------------------------------------------------

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MICROSECONDS = int(NOON.timestamp()) * 1_000_000


def scheduled(*returned: Any, schedules: bool = True) -> tuple[LogEntry, dict[int, Any]]:
    """What is to be done, and row → error; each handler returned one, which a store of handled messages kept."""
    given = write_options(REDIS)
    outputs = [
        Output(row, json.loads(json.dumps(columns)))
        for row, each in enumerate(returned)
        for columns in outgoing_rows(each, message(), headers=True, context=dict)
    ]
    with given.binding() as binding:
        destinations = Destinations(given, binding, [("urn:routed", "routed")], schedules=schedules)
        batches, failures = encode_outputs(outputs, IdSource("run"), destinations)
    empty = pa.RecordBatch.from_pylist([], OUTGOING_MESSAGES)
    return LogEntry({}, pa.concat_batches([empty, *batches])), failures


def test_what_is_for_the_schedule_keeps_its_order() -> None:
    entry, failures = scheduled(
        Outgoing(job="urn:routed", data={"n": 1}, send_at=NOON, job_id="publish-7", headers={"a": "b"}),
        Outgoing(job="urn:now", data={}, queue="now"),
        Outgoing(
            job="urn:other", data={}, queue="other", send_at=NOON.astimezone(timezone(timedelta(hours=2)))
        ),
        Cancel("publish-7"),
        Outgoing(
            job="urn:routed", data={"n": 2}, send_at=NOON + timedelta(microseconds=1), job_id="publish-7"
        ),
    )
    assert failures == {}
    assert entry.sent.column("queue").to_pylist() == ["now"]
    first, other, cancelled, last = entry.scheduled.to_pylist()
    assert [row["job_id"] for row in (first, cancelled, last)] == ["publish-7"] * 3
    assert (other["queue"], len(other["job_id"])) == ("other", 36)
    assert [row["queue"] for row in (first, cancelled, last)] == ["routed", None, "routed"]
    assert [row["send_at"] for row in (first, other, cancelled, last)] == [
        *(MICROSECONDS, MICROSECONDS, None, MICROSECONDS + 1)
    ]
    assert dict(first["headers"]) == {"a": "b"}
    assert [json.loads(row["body"])["data"] for row in (first, last)] == [{"n": 1}, {"n": 2}]


def test_what_fails_in_the_schedule_takes_its_row_along_and_no_other() -> None:
    entry, failures = scheduled(
        Outgoing(job="urn:routed", data={}, send_at=NOON, job_id="a"),
        [Outgoing(job="urn:now", data={}, queue="now"), Outgoing(job=" ", data={}, queue="q", send_at=NOON)],
    )
    assert [*failures] == [1]
    assert entry.sent.num_rows == 0
    assert entry.scheduled.column("job_id").to_pylist() == ["a"]


@pytest.mark.parametrize(
    "returned", [Outgoing(job="urn:x", data={}, queue="q", send_at=NOON), Cancel("publish-7")]
)
def test_without_a_schedule_the_message_has_failed(returned: Any) -> None:
    entry, failures = scheduled(returned, schedules=False)
    assert entry.messages.num_rows == 0
    with pytest.raises(OptionError, match=r"the worker has no schedule: give it one, Publishing\(schedule="):
        raise failures[0]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"send_at": datetime(2030, 1, 1)}, "a datetime with its zone"),
        ({"send_at": "2030-01-01"}, "a datetime with its zone"),
        ({"send_at": NOON, "delay": 1.0}, "give one of them"),
        ({"job_id": "a"}, "give it a send_at too"),
        ({"send_at": NOON, "job_id": ""}, "1 to 1024 characters, not 0"),
        ({"send_at": NOON, "job_id": 7}, "takes a text"),
    ],
)
def test_what_can_be_no_job_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        Outgoing(job="urn:x", data={}, **given)


def test_a_schedule_is_one() -> None:
    with pytest.raises(OptionError, match=r"takes a Schedule of babelqueue_spark\.exchange, not a str"):
        Publishing(schedule="sqlite:///schedule.db")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Cancel: job_id has 1 to 1024 characters"):
        Cancel("")


def test_a_scheduled_message_continues_the_trace_of_its_handler() -> None:
    parent = f"00-{'4bf92f3577b34da6a3ce929d0e0e4736'}-{7:016x}-01"
    [row] = outgoing_rows(
        Outgoing(job="urn:x", data={}, send_at=NOON), message(), headers=True, context=dict, parent=parent
    )
    assert row["headers"] == {"traceparent": parent}
    [now] = outgoing_rows(
        Outgoing(job="urn:x", data={}), message(), headers=True, context=dict, parent=parent
    )
    assert now["headers"] is None  # its own span gives it one


# -- meta --------------------------------------------------------------------------------------------------


def test_a_message_takes_further_keys_of_meta() -> None:
    cause = json.dumps("the cause")
    [row] = outgoing_rows(
        Outgoing(job="urn:x", data={}, meta={"tenant": {"name": "é"}, "shop": 1}),
        message(),
        headers=True,
        context=lambda: {"causation_id": cause, "tenant": '"other"'},
    )
    assert row["extra"] == {"causation_id": cause, "tenant": '{"name":"é"}', "shop": "1"}


@pytest.mark.parametrize("meta", [{"id": "mine"}, {"x": float("nan")}, {"x": object()}])
def test_meta_that_an_envelope_cannot_hold_is_refused(meta: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="meta"):
        Outgoing(job="urn:x", data={}, meta=meta)


# -- replies -----------------------------------------------------------------------------------------------


def replied(returned: Any) -> dict[str, Any]:
    """A reply as columns of a write; the request asks for it in `replies`."""
    request = message(**{"reply-to": "replies"})
    reply = reply_of(write_options(REDIS), request, returned)
    context = {"causation_id": json.dumps(request.id), "tenant": '"a"'}
    [row] = outgoing_rows(reply, request, headers=True, context=lambda: context)
    assert row["headers"]["correlation-id"] == request.id
    assert (row["queue"], row["reply"], row["extra"]["causation_id"]) == (
        "replies",
        True,
        json.dumps(request.id),
    )
    return row


@pytest.mark.parametrize("queue", [None, "replies"])
def test_a_responder_returns_a_message_of_its_own(queue: str | None) -> None:
    row = replied(
        Outgoing(
            job="urn:babel:prices:quoted",
            data={"price": "9.90"},
            queue=queue,
            headers={"shop": "7", "correlation-id": "another"},
            meta={"currency": "EUR", "causation_id": "another"},
            key="customer-7",
        )
    )
    assert (row["job"], row["data"], row["key"]) == (
        "urn:babel:prices:quoted",
        '{"price":"9.90"}',
        "customer-7",
    )
    assert row["headers"]["shop"] == "7"
    assert row["extra"]["currency"] == '"EUR"'


def test_a_responder_returns_the_data_alone() -> None:
    assert replied({"price": "9.90"})["job"] == "urn:babel:orders:created:reply"


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (Outgoing(job="urn:x", data={}, queue="elsewhere"), "names 'elsewhere': leave out its queue"),
        (7, "a mapping, or an Outgoing, but this is a int"),
        ([Outgoing(job="urn:x", data={})], "but this is a list"),
        (Outgoing(job="urn:x", data={"x": float("nan")}), "not JSON compliant"),
        (Outgoing(job="urn:x", data={}, send_at=NOON), "a reply goes at once"),
    ],
)
def test_what_can_be_no_reply_is_told_to_who_asked(returned: Any, text: str) -> None:
    row = replied(returned)
    assert row["job"] == REQUEST_FAILED
    assert text in json.loads(row["data"])["error"]
