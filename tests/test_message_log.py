"""The message log of reads and writes: a line about each message, and nothing unless it is asked for."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.connector.message_log import MessageLog, message_log
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import OptionError, RequestTimeoutError
from babelqueue_spark.exchange import Outbox, Schedule, ask
from babelqueue_spark.jobs import publish as publish_job
from babelqueue_spark.worker.dead_letters.by_name import drop_chosen, names_of, redrive_chosen
from tests.brokers import url_of
from tests.exchange import outboxes, schedules
from tests.streams import drain, envelope, publish
from tests.worker.queues import lines

BODIES = pa.array([b""])


@pytest.mark.spark
@pytest.mark.parametrize("broker", ["sqlite", "redis"])
def test_reads_and_writes_log_each_message(
    spark: Any, broker: str, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    url, log = url_of(broker, request, tmp_path), tmp_path / "log"
    frame = spark.createDataFrame(
        [("urn:x", f'{{"order_id":{n}}}', float(n)) for n in range(3)],
        "job STRING, data STRING, delay DOUBLE",
    ).where("delay < 1")
    write = frame.write.format("babelqueue").mode("append")
    for _ in range(2):
        write.options(url=url, queue=queue, messageLog=str(log), txnAppId="a", txnVersion="1").save()
    publish(url, queue, [b"\xff"])
    spark.read.format("babelqueue").options(url=url, queue=queue, messageLog=str(log)).load().count()
    drain(spark, url, queue, tmp_path, messageLog=str(log))
    found = sorted(lines(log), key=lambda line: (line["event"], "body" not in line))
    assert [line["event"] for line in found] == ["browsed", "browsed", "published", "taken", "taken"]
    transport = "sql" if broker == "sqlite" else broker
    assert {(line["transport"], line["queue"]) for line in found} == {(transport, queue)}
    bodies = {line["body"] for line in found if "body" in line}
    assert len(bodies) == 1
    envelope_ = json.loads(bodies.pop())
    named = [line for line in found if "body" in line]
    assert {(line["urn"], line["trace_id"], line["id"]) for line in named} == {
        ("urn:x", envelope_["trace_id"], envelope_["meta"]["id"])
    }
    assert {line["body_base64"] for line in found if "body" not in line} == {"/w=="}
    assert "redis://" not in "".join(path.read_text() for path in log.iterdir())


@pytest.mark.spark
def test_a_read_of_a_log_has_lines_too(spark: Any, kafka_server: Any, queue: str, tmp_path: Path) -> None:
    publish(kafka_server.url, queue, [envelope(1)])
    options = {"url": kafka_server.url, "queue": queue, "messageLog": str(tmp_path / "log")}
    assert spark.read.format("babelqueue").options(**options).load().count() == 1
    [line] = lines(tmp_path / "log")
    assert (line["event"], line["transport"], line["queue"]) == ("read", "kafka", queue)


def test_messages_go_on_where_lines_cannot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with (
        RedisBinding(BindingConfig(url="redis://127.0.0.1:1")) as binding,
        message_log(str(tmp_path / "file"), "name", binding, None) as lines,
    ):
        lines.write([("taken", {})], BODIES)
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        full.reconfigure(line_buffering=True)
        log = MessageLog(full, "redis")
        log.write([("taken", {})], BODIES)
        log.write([("taken", {})], BODIES)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_a_folder_is_an_absolute_path() -> None:
    with pytest.raises(OptionError, match="'messageLog' has the value 'log', but takes the absolute path"):
        read_options({"url": "redis://localhost", "queue": "orders", "messageLog": "log"})


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    MessageLog(None, "redis").write([("taken", {})], BODIES)
    assert list(tmp_path.iterdir()) == []


def logged(folder: Path) -> list[tuple[str, str, int]]:
    """Event, queue and order of each line."""
    return [
        (line["event"], line["queue"], json.loads(line["body"])["data"]["order_id"]) for line in lines(folder)
    ]


def test_a_release_logs_what_it_publishes(tmp_path: Path) -> None:
    schedule = Schedule(f"sqlite:///{tmp_path}/schedule.db")
    schedules.store(schedule, range(2))
    schedule.release(
        {"url": f"sqlite:///{tmp_path}/q.db", "queue": "orders", "messageLog": str(tmp_path / "log")}
    )
    assert logged(tmp_path / "log") == [("published", "orders", 0), ("published", "orders", 1)]


def test_a_relay_logs_what_it_publishes(tmp_path: Path) -> None:
    outbox = Outbox(f"sqlite:///{tmp_path}/shop.db")
    outboxes.store(outbox, range(2), ["orders"])
    outbox.relay({"url": f"sqlite:///{tmp_path}/q.db", "messageLog": str(tmp_path / "log")})
    assert logged(tmp_path / "log") == [("published", "orders", 0), ("published", "orders", 1)]


def test_redriving_and_dropping_log_what_they_take_and_publish(tmp_path: Path) -> None:
    url, letters = f"sqlite:///{tmp_path}/q.db", "orders.dlq"
    options = {"url": url, "messageLog": str(tmp_path / "log")}
    publish(url, letters, [envelope(1), envelope(2)])
    with read_options({"url": url, "queue": letters}).binding() as binding:
        first, second = (name for batch in binding.browse(letters) for name in names_of(batch))
    assert len(redrive_chosen(options, letters, [first], to="orders").moves) == 1
    assert drop_chosen(options, letters, [second]) == 1
    assert sorted(logged(tmp_path / "log")) == [
        ("published", "orders", 1),
        ("taken", letters, 1),
        ("taken", letters, 2),
    ]


def test_a_request_is_logged(tmp_path: Path) -> None:
    options = {"url": f"sqlite:///{tmp_path}/q.db", "queue": "orders", "messageLog": str(tmp_path / "log")}
    with pytest.raises(RequestTimeoutError):
        ask(options, "urn:x", {"order_id": 7}, timeout=0)
    assert logged(tmp_path / "log") == [("published", "orders", 7)]


def test_the_publish_job_logs_lines(tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_bytes(envelope(3) + b"\n")
    log = f"messageLog={tmp_path / 'log'}"
    url = f"sqlite:///{tmp_path}/q.db"
    arguments = [
        "--input",
        str(tmp_path / "orders.jsonl"),
        "--url",
        url,
        "--queue",
        "orders",
        "--option",
        log,
    ]
    assert publish_job.main(arguments) == 0
    assert logged(tmp_path / "log") == [("published", "orders", 3)]
