"""No error shows what an option refers to."""

from __future__ import annotations

import importlib
import io
import logging
import sqlite3
import traceback
from contextlib import closing, redirect_stderr
from pathlib import Path

import pytest

from babelqueue_spark.bindings.firehose.binding import FirehoseOptions
from babelqueue_spark.bindings.kinesis.client import KinesisOptions
from babelqueue_spark.bindings.sqs.options import SqsOptions
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import BrokerError, hide
from tests.brokers import URLS
from tests.programs import run
from tests.streams import envelope, outgoing

VALUE = "zq7_distinctive"
QUICK = {
    "kafka.timeout_seconds": "1",
    "pulsar.operation_timeout_seconds": "1",
    "servicebus.retry_total": "0",
    "servicebus.try_timeout": "1",
    "sqs.access_key_id": "x",
    "sqs.secret_access_key": "x",
    "sqs.connect_timeout": "1",
    "sqs.endpoint_url": "http://127.0.0.1:1",
    "sqs.max_attempts": "1",
    **{
        f"{broker}.{name}": value
        for broker in ("kinesis", "firehose")
        for name, value in {
            "access_key_id": "x",
            "secret_access_key": "x",
            "connect_timeout": "1",
            "endpoint_url": "http://127.0.0.1:1",
            "max_attempts": "1",
        }.items()
    },
}
PASSED = [
    "sasl.username",
    "sasl.password",
    "sasl.mechanism",
    "security.protocol",
    "ssl.ca.location",
    "client.id",
]
"""Options of librdkafka."""
OF_AWS = {kind.broker: kind for kind in (FirehoseOptions, KinesisOptions, SqsOptions)}
SECURE = {"redis": "rediss", "rabbitmq": "amqps", "pulsar": "pulsar+ssl", "artemis": "artemis+ssl"}


def options() -> list[tuple[str, str, str]]:
    """Broker, option and URL, of each option of each binding."""
    found = []
    for broker, url in URLS.items():
        if broker in OF_AWS:
            table = OF_AWS[broker].table()
        else:
            table = importlib.import_module(f"babelqueue_spark.bindings.{broker}.options")._TABLE
        found += [(broker, option, url) for option in (*table.own, *(PASSED if table.passed else ()))]
        found += [(broker, option, url.replace(f"{broker}:", f"{SECURE[broker]}:")) for option in table.tls]
    return found


@pytest.mark.parametrize(("broker", "option", "url"), options(), ids=lambda given: given)
def test_no_error_shows_what_an_option_refers_to(
    broker: str,
    option: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HIDDEN", VALUE)
    if broker == "sql":
        url = f"sqlite:///{tmp_path}/q.db"
        with closing(sqlite3.connect(tmp_path / "q.db")) as database:
            database.execute(f"CREATE TABLE {VALUE} (of_another_shape INT)")
    quick = {name: value for name, value in QUICK.items() if name.startswith(f"{broker}.")}
    given = {"url": url, "queue": "orders", **quick, f"{broker}.{option}": "env:HIDDEN"}
    shown: list[str] = []
    with redirect_stderr(io.StringIO()) as errors, caplog.at_level(logging.DEBUG, "babelqueue_spark"):
        try:
            made = read_options(given)
            shown += [repr(made), str(made)]
            with made.binding() as binding:
                shown += [repr(binding), repr(binding.config)]
                binding.backlog("orders")
        except Exception:  # noqa: BLE001 (of the client too)
            shown.append(traceback.format_exc())
    assert VALUE not in "\n".join([*shown, errors.getvalue(), caplog.text])


def test_what_tells_nothing_is_shown() -> None:
    for value in ("10s", "true", "5432", "abc", "64m"):
        hide(value, "env:HIDDEN")
    assert BrokerError("10s true 5432 abc 64m").text == "10s true 5432 abc 64m"


def test_a_password_of_digits_is_hidden() -> None:
    hide("20251234", "env:HIDDEN")
    assert BrokerError("login with 20251234").text == "login with env:HIDDEN"


def test_the_password_of_a_url_is_hidden_however_it_is_written() -> None:
    hide("redis://user:pass%20w0rd@h/0", "env:URL")
    assert BrokerError("pass%20w0rd, pass w0rd").text == "env:URL, env:URL"


PROGRAM = """
import sys
from pyspark.sql import SparkSession
folder = sys.argv[1]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", folder + "/events").getOrCreate())
options = {"url": "env:HIDDEN_URL", "sql.table": "env:HIDDEN"}
read = spark.readStream.format("babelqueue").options(queue="orders", journalLocation=folder + "/journal", **options)
rows = read.load().selectExpr("job", "data")
rows.explain(True)
query = (rows.writeStream.format("babelqueue").options(queue="copies", checkpointLocation=folder + "/checkpoint", **options)
    .trigger(availableNow=True).start())
query.awaitTermination(90)
assert query.exception() is None, query.exception()
query.explain(True)
print(query.lastProgress, query.status)
broken = spark.read.format("babelqueue").options(url="env:HIDDEN_URL", queue="orders").option("sql.table", "env:WRONG")
try:
    print(broken.load().count())
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.spark
def test_nothing_that_a_run_leaves_shows_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/{VALUE}.db"
    with read_options({"url": url, "queue": "orders", "sql.table": VALUE}).binding() as binding:
        binding.publish("orders", outgoing([envelope(1)]))
        (tmp_path / "run/events").mkdir(parents=True)
        hidden = {"HIDDEN": VALUE, "HIDDEN_URL": url, "WRONG": f"{VALUE}; --"}
        said = run(PROGRAM, str(tmp_path / "run"), **hidden)
        assert binding.backlog("copies") == 1
    left = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"events", "journal", "checkpoint"} <= {
        path.relative_to(tmp_path / "run").parts[0] for path in left
    }
    assert VALUE not in said
    assert [path for path in left if VALUE.encode() in path.read_bytes()] == []
