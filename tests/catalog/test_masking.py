"""What a catalog hides in the message log, in notebooks, and in what jobs show: all that nobody knows too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.schemas.masking import Mask
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.schemas.sensitive import MARK
from babelqueue_spark.worker import Reject, Worker
from tests.brokers import url_of
from tests.catalog.registries import MAILS, ORDERS, SECRET, registry
from tests.streams import envelope, publish, run, stream
from tests.worker.queues import lines

SCHEMAS: dict[str, Any] = {
    ORDERS: {
        "type": "object",
        "properties": {"order_id": {"type": "integer"}, "email": {"type": "string", MARK: "contact"}},
    },
    MAILS: {"type": "object"},
}
UNFOLLOWED = {ORDERS: {"patternProperties": {"^e": {MARK: True}}}}
BLOCK = {
    "reason": "failed",
    "error": f"no mail to {SECRET}",
    "exception": "ValueError",
    "failed_at": 1700000000000,
    "original_queue": "orders",
    "attempts": 3,
    "lang": "python",
}
HIDDEN = b"***"


def masked(body: bytes) -> bytes:
    [shown] = Mask(Registry(SCHEMAS)).bodies(pa.array([body])).to_pylist()
    return bytes(shown)


def order(number: int = 1, **changes: Any) -> bytes:
    return envelope(number, **{"data": {"order_id": number, "email": SECRET}, **changes})


def test_a_body_has_everything_but_its_sensitive_fields() -> None:
    body = order()
    sent, shown = json.loads(body), json.loads(masked(body))
    assert shown == {**sent, "data": {"order_id": 1, "email": "***"}}


def test_a_payload_without_marks_keeps_its_text() -> None:
    body = envelope(1, job=MAILS, data={"to": SECRET})
    assert json.loads(masked(body)) == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        order(job="urn:babel:orders:created:v2"),
        order(data={"order_id": SECRET, "email": "x"}),
    ],
    ids=["a URN that the catalog does not know", "a payload that violates the schema"],
)
def test_a_payload_that_nobody_knows_is_hidden_whole(body: bytes) -> None:
    assert json.loads(masked(body)) == {**json.loads(body), "data": "***"}


@pytest.mark.parametrize(
    "body",
    [
        SECRET.encode(),
        b"\xff" + SECRET.encode(),
        order(trace_id={"of": SECRET}),
        order(data=[SECRET]),
        order(meta=None),
    ],
)
def test_a_body_that_is_no_envelope_is_hidden_whole(body: bytes) -> None:
    assert masked(body) == HIDDEN


def test_members_beside_the_payload_may_quote_it() -> None:
    letter = json.loads(masked(order(dead_letter=BLOCK)))
    assert letter["dead_letter"] == {**BLOCK, "error": "***"}
    assert json.loads(masked(order(note=SECRET)))["note"] == "***"
    assert masked(json.dumps({"raw": SECRET, "dead_letter": BLOCK}).encode()) == HIDDEN


def test_repeated_members_are_shown_as_they_are_read() -> None:
    body = order().replace(b'"data":{', b'"data":{"email":"first"},"data":{')
    assert json.loads(masked(body))["data"] == {"order_id": 1, "email": "***"}
    assert b"first" not in masked(body)


@pytest.mark.parametrize("given", ["option", "worker"])
def test_a_mark_that_is_not_followed_is_an_error_before_anything_is_logged(
    given: str, tmp_path: Path
) -> None:
    location = str(registry(tmp_path / "registry", UNFOLLOWED))
    options = {"url": "redis://localhost", "messageLog": str(tmp_path / "log")}
    with pytest.raises(OptionError, match="not followed within 'patternProperties'"):
        if given == "option":
            read_options({**options, "queue": "orders", "catalog": location})
        else:
            Worker(options, state="/mnt/journal", catalog=location)


def test_what_a_dataframe_handler_returns_is_not_logged_unmasked(tmp_path: Path) -> None:
    """Its rows are written with the worker's options, which do not have a catalog of the worker's own."""
    location, log = str(registry(tmp_path / "registry", SCHEMAS)), str(tmp_path / "log")
    options = {"url": "redis://localhost", "messageLog": log}
    with pytest.raises(OptionError, match="unmasked: give the catalog by the option 'catalog'"):
        Worker(options, state="/mnt/journal", catalog=location).dataframe_handler("*")
    Worker({**options, "catalog": location}, state="/mnt/journal").dataframe_handler("*")


@pytest.mark.spark
def test_the_message_log_of_reads_writes_and_workers(
    spark: Any, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    url, log = url_of("sqlite", request, tmp_path), tmp_path / "log"
    location = str(registry(tmp_path / "registry", SCHEMAS))
    given = {"catalog": location, "messageLog": str(log)}
    data = f'{{"order_id":1,"email":"{SECRET}"}}'
    rows = spark.createDataFrame([(ORDERS, data), ("urn:other", data)], "job STRING, data STRING")
    rows.write.format("babelqueue").options(url=url, queue=queue, **given).mode("append").save()
    publish(url, queue, [SECRET.encode()])
    browsed = spark.read.format("babelqueue").options(url=url, queue=queue, **given).load()
    assert browsed.where(f"data LIKE '%{SECRET}%'").count() == 2
    worker = Worker({"url": url, "messageLog": str(log)}, state=str(tmp_path / "w"), catalog=location)

    @worker.handler("*")
    def handle(message: Any) -> None:
        raise Reject("unreachable", f"no mail to {message.data['email']}")

    run(stream(spark, url, queue, tmp_path, **given), tmp_path, worker)
    assert worker.counts.dead_lettered == 3
    found = lines(log)
    assert {line["event"] for line in found} == {"published", "browsed", "taken", "job.dead_letter"}
    assert SECRET not in json.dumps(found)
    known = [json.loads(line["body"])["data"] for line in found if line["urn"] == ORDERS]
    assert known
    assert all(each == {"order_id": 1, "email": "***"} for each in known)


@pytest.mark.spark
def test_what_a_notebook_shows(
    spark: Any, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    url = url_of("sqlite", request, tmp_path)
    publish(url, queue, [order(), order(job="urn:other"), order(dead_letter=BLOCK), SECRET.encode()])
    messages = spark.read.format("babelqueue").options(url=url, queue=queue).load()
    catalog = Catalog(SCHEMAS)
    shown = catalog.mask(messages)
    assert shown.schema.simpleString() == messages.schema.simpleString()
    rows = shown.collect()
    assert SECRET not in str([row.asDict(recursive=True) for row in rows])
    assert [row.data for row in rows] == [
        '{"order_id":1,"email":"***"}',
        "***",
        '{"order_id":1,"email":"***"}',
        "***",
    ]
    assert [row.dead_letter and row.dead_letter.error for row in rows] == [None, None, "***", None]
    few = catalog.mask(messages.select("job", "data", "error"))
    assert few.columns == ["job", "data", "error"]
    with pytest.raises(OptionError, match="but error is not"):
        catalog.mask(messages.select("job", "data"))
