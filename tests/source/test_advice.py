"""What the first poll of a stream says of a queue that only seems empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.source.stream import QueueStreamReader
from tests.servers import RedisServer
from tests.streams import envelope

pytestmark = pytest.mark.server


def test_the_first_poll_tells_of_a_queue_behind_another_prefix(
    redis_server: RedisServer, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"url": redis_server.url, "queue": queue, "journalLocation": str(tmp_path / "journal")}
    reader = QueueStreamReader(read_options(options), SCHEMA)
    with Redis(port=redis_server.port) as client:
        client.rpush(f"laravel_database_queues:{queue}", envelope(1))
    start = reader.initialOffset()
    assert [reader.latestOffset(start) for _ in range(2)] == [start] * 2
    reader.stop()
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"queue '{queue}' has no messages, but there is a list")
    assert warning.endswith("set redis.laravel=true, redis.prefix=laravel_database_queues:")
