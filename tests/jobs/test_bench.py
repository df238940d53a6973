"""The job bench: a broker measured with messages of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.brokers import url_of
from tests.jobs.conftest import Run
from tests.streams import backlog, envelope, publish

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("broker", ["sqlite", "kafka"])
def test_what_was_published_is_read(
    spark: Any,
    request: pytest.FixtureRequest,
    broker: str,
    queue: str,
    tmp_path: Path,
    run: Run,
    admission_control: bool,
) -> None:
    url = url_of(broker, request, tmp_path)
    done = run("bench", "--url", url, "--queue", queue, "--messages", "500", "--bytes", "1000")
    assert (done.code, done.err) == (0, "")
    lines = [line for line in done.out.splitlines() if line.startswith("│")]
    bounded = admission_control or broker == "sqlite"
    assert [cell.strip() for line in lines for cell in line.split("│")[1:3]] == [
        *("publish", "500"),
        *(
            ("read, first batch", "100", "read, further batches", "400")
            if bounded
            else ("read, first batch", "500")
        ),
    ]
    [body] = spark.read.format("babelqueue").options(url=url, queue=queue).load().limit(1).collect() or [None]
    if broker == "sqlite":
        assert body is None
    else:
        assert 900 < len(body.body) < 1100


def test_a_queue_in_use_is_left_alone(sqlite: str, queue: str, run: Run) -> None:
    publish(sqlite, queue, [envelope(1, queue)])
    done = run("bench", "--url", sqlite, "--queue", queue)
    assert (done.code, done.out) == (1, "")
    assert "has 1 messages, which would be read: name an empty one" in done.err
    assert backlog(sqlite, queue) == 1
