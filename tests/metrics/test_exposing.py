"""Where metrics go, and what they may say."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from babelqueue_spark.errors import OptionError
from babelqueue_spark.metrics import families
from babelqueue_spark.metrics.exposure import exposed
from babelqueue_spark.metrics.observer import Observer
from babelqueue_spark.metrics.recorder import Recorder
from babelqueue_spark.metrics.store import MOST_VALUES, Metrics
from babelqueue_spark.metrics.watch import watches
from babelqueue_spark.worker import Counts
from tests.metrics.scrapes import Scrape, scrape
from tests.servers.pushgateway import PushgatewayServer
from tests.streams import envelope, publish

PASSWORD = "gateway-s3cret"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def test_a_port_is_of_the_loopback_interface_and_any_where_0_is_given(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.set(families.BACKLOG, 7, "a query", "orders")
    port = exposed("0", "orders", registry)
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", port.address)
        assert scrape(port.address).value("babelqueue_backlog_messages", query="a query", queue="orders") == 7
        taken = port.address.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(OptionError, match=r"cannot be opened.*choose another"):
            exposed(taken, "orders", registry)
    finally:
        port.close()
    with pytest.raises(OSError, match="refused"):
        scrape(port.address)


@pytest.mark.server
def test_a_push_gateway_has_them_by_job_and_host(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.add(families.MESSAGES, 3, "a query")
    with PushgatewayServer() as gateway:
        where = exposed(gateway.url, "drain", registry)
        where.write()
        metrics.add(families.MESSAGES, 2, "a query")
        where.write()
        labels = {"query": "a query", "job": "drain", "instance": socket.gethostname()}
        assert Scrape(gateway.pushed()).value("babelqueue_messages_total", **labels) == 5


def test_a_file_is_replaced_as_a_whole(metrics: Metrics, registry: CollectorRegistry, tmp_path: Path) -> None:
    where = exposed(str(tmp_path / "orders.prom"), "orders", registry)
    for number in range(2):
        metrics.add(families.MESSAGES, 1, "a query")
        where.write()
        found = Scrape((tmp_path / "orders.prom").read_text())
        assert found.value("babelqueue_messages_total", query="a query") == number + 1
    assert [path.name for path in tmp_path.iterdir()] == ["orders.prom"]


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("orders.txt", "no place for them"),
        ("ftp://gateway:9091", "no place for them"),
        ("/no/such/folder/orders.prom", "there is no directory /no/such/folder"),
        ("99999", "cannot be opened"),
        ("env:NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE, which is not set"),
    ],
)
def test_a_place_that_is_none(to: str, says: str, registry: CollectorRegistry) -> None:
    with pytest.raises(OptionError, match=says) as error:
        exposed(to, "orders", registry)
    assert "\n" not in str(error.value)


def test_a_gateway_that_is_away_is_logged_once_without_its_password(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("GATEWAY", f"http://orders:{PASSWORD}@{address}")
        gateway = exposed("env:GATEWAY", "orders", registry)
        assert gateway.address == f"http://{address}"
        streams = SimpleNamespace(active=[], addListener=lambda _: None, removeListener=lambda _: None)
        session: Any = SimpleNamespace(streams=streams)
        with caplog.at_level(logging.WARNING, "babelqueue_spark"):
            Observer(session, gateway, [], Recorder(Metrics(CollectorRegistry())), 0.01, registry).close()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"metrics do not reach http://{address} for now: ")
    assert PASSWORD not in line


def test_labels_are_bounded_and_show_names_only(metrics: Metrics, registry: CollectorRegistry) -> None:
    recorder = Recorder(metrics)
    counts = Counts()
    counts.by.update({(f"urn:{number}", "acked", None): 1 for number in range(MOST_VALUES + 20)})
    counts.by[("urn:0", "dead_lettered", "card 4111 1111 1111 1111 was refused")] = 2
    counts.by[("a customer's name", "dead_lettered", "poison")] = 3
    counts.by[(None, "dead_lettered", "poison")] = 4
    recorder.worked(counts)
    series = {
        tuple(sample.labels[name] for name in ("urn", "outcome", "reason")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == families.WORKED.name
    }
    assert series["other", "acked", ""] == 20
    assert series["urn:0", "dead_lettered", "other"] == 2
    assert series["other", "dead_lettered", "poison"] == 3
    assert series["", "dead_lettered", "poison"] == 4
    assert len(series) == MOST_VALUES + 4


def test_each_queue_has_a_gauge_of_its_own(metrics: Metrics, registry: CollectorRegistry) -> None:
    for number in range(MOST_VALUES + 20):
        metrics.set(families.WAITING, number, "redis", f"orders-{number}")
    labels = {"broker": "redis", "queue": f"orders-{MOST_VALUES + 19}"}
    assert registry.get_sample_value(families.WAITING.name, labels) == MOST_VALUES + 19


def test_a_queue_that_cannot_be_polled_has_no_gauges_and_comes_back(
    metrics: Metrics, registry: CollectorRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "away"
    folder.mkdir()
    url = f"sqlite:///{folder}/queue.db"
    publish(url, "orders", [envelope(1)])
    given = {"url": url, "queue": "orders", "journalLocation": str(tmp_path), "maxMessagesPerTrigger": "5"}
    [watch] = watches([given], metrics)
    found = lambda: registry.get_sample_value(  # noqa: E731
        "babelqueue_queue_messages", {"broker": "sql", "queue": "orders"}
    )
    watch.poll()
    assert found() == 1
    folder.rename(tmp_path / "there")
    for _ in range(2):
        watch.poll()
    assert found() is None
    failures = registry.get_sample_value(
        "babelqueue_poll_failures_total", {"broker": "sql", "queue": "orders"}
    )
    assert (failures, len(caplog.records)) == (2, 1)
    (tmp_path / "there").rename(folder)
    watch.poll()
    assert found() == 1


@pytest.mark.parametrize(
    ("url", "says"), [("kafka://127.0.0.1:1", "keeps what"), ("pulsar://127.0.0.1:1", "hold")]
)
def test_what_cannot_be_polled_is_not_watched(url: str, says: str, metrics: Metrics) -> None:
    with pytest.raises(OptionError, match=says):
        list(watches([{"url": url, "queue": "orders"}], metrics))
