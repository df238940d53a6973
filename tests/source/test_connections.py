"""How many connections a query opens at its broker: at most what docs/operations.md says, at real servers."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psutil
import pytest

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.datasource import BabelQueueDataSource
from babelqueue_spark.testing import eventually
from tests.brokers import SERVERS, url_of
from tests.streams import envelope, outgoing

PAGE = Path(__file__).parents[2] / "docs/operations.md"


def documented(title: str) -> list[int]:
    """Those of the driver, of a reader task and of a writer task."""
    section = PAGE.read_text().split("\n## Connections\n")[1].split("\n## ")[0]
    [row] = re.findall(rf"^\| {title} \| (\d+) \| (\d+) \| (\d+) \|", section, re.M)
    return [int(cell) for cell in row]


@pytest.mark.parametrize("broker", SERVERS)
def test_a_query_opens_no_more_connections_than_its_page_says(
    broker: str, request: Any, queue: str, tmp_path: Path
) -> None:
    url = url_of(broker, request, tmp_path)
    url = url.replace("shard_count=1", "shard_count=4")
    port = int(re.findall(r"127\.0\.0\.1:(\d+)", unquote(url))[0])

    def seen(opened: Opened) -> None:
        """Wait until a connection was seen, as the system's list of them may lack one; Kinesis' are short."""
        if broker != "kinesis":
            eventually(opened.count)

    with counted(port) as by_writer, read_options({"url": url, "queue": queue}).binding() as binding:
        once = uuid.uuid4().hex if binding.capabilities.publish_once else None
        binding.publish(queue, outgoing(map(envelope, range(200))), idempotency_key=once)
    options = {"url": url, "queue": queue, "journalLocation": str(tmp_path / "journal")}
    reader = BabelQueueDataSource(options).streamReader(SCHEMA)
    with counted(port) as by_driver:
        start = reader.initialOffset()
        end = eventually(lambda: found if (found := reader.latestOffset(start)) != start else None)
        task, *_ = reader.partitions(start, end)
        reader.commit(start)
        seen(by_driver)
    with counted(port) as by_task:
        rows = iter(reader.read(task))
        assert next(rows).num_rows  # type: ignore[union-attr]
        seen(by_task)
        assert not list(rows)
    reader.stop()
    counts = [len(each.most) for each in (by_driver, by_task, by_writer)]
    said = documented(binding.title)
    assert all(count <= limit for count, limit in zip(counts, said, strict=True)), (counts, said)


class Opened:
    """Connections of this process to a port, without those from before."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before = self._connections()
        self.most: set[Any] = set()

    def count(self) -> int:
        self.most = max(self.most, self._connections() - self._before, key=len)
        return len(self.most)

    def _connections(self) -> set[Any]:
        found = psutil.Process().net_connections("tcp")
        return {each.laddr for each in found if each.raddr and each.raddr.port == self._port}


@contextmanager
def counted(port: int) -> Iterator[Opened]:
    """Count again and again until the end."""
    counter, ended = Opened(port), threading.Event()

    def count() -> None:
        while not ended.wait(0.005):
            counter.count()

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    yield counter
    ended.set()
    thread.join()
