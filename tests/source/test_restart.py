"""A broker that stops in mid-stream and comes back: the query says which, goes on when started again, loses nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from babelqueue_spark.testing import eventually
from tests.brokers import DURABLE
from tests.servers import Server
from tests.streams import WAIT, envelope, numbers, publish, run, stream

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

MESSAGES = 4_000


@pytest.mark.parametrize(("name", "make"), DURABLE.items(), ids=DURABLE)
def test_a_broker_stops_and_comes_back(
    spark: Any, name: str, make: Callable[[], Server], tmp_path: Path, queue: str
) -> None:
    arrived: dict[int, list[int]] = {}

    def each(frame: Any, batch: int) -> None:
        arrived[batch] = numbers(frame.collect())

    def start() -> Any:
        frame = stream(spark, server.url, queue, tmp_path, maxMessagesPerTrigger=500)
        return run(frame, tmp_path, each, processingTime="0 seconds")

    with make() as server:
        publish(server.url, queue, (envelope(number, queue) for number in range(MESSAGES)))
        query = start()
        eventually(lambda: len(arrived) >= 2, WAIT)
        server.stop()
        with pytest.raises(StreamingQueryException) as caught:
            assert query.awaitTermination(WAIT), "the query did not notice"
        assert re.search(rf"Broker\w*Error: .*{name} at \S*{server.address}", str(caught.value))
        server.start()
        query = start()
        eventually(lambda: sum(map(len, arrived.values())) >= MESSAGES or query.exception(), WAIT)
        query.processAllAvailable()
        query.stop()
    assert Counter(number for batch in arrived.values() for number in batch) == Counter(range(MESSAGES))
