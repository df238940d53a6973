"""A task that publishes is killed between two chunks and run again: each row is published once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.connector.options import Options, write_options
from babelqueue_spark.connector.rows.writing import IdSource
from babelqueue_spark.connector.sink.writer import _publish
from tests.streams import backlog

ROWS = 25_000


def rows(batch_size: int) -> list[pa.RecordBatch]:
    table = pa.table({"job": ["urn:x"] * ROWS, "data": [f'{{"n":{n}}}' for n in range(ROWS)]})
    return table.to_batches(max_chunksize=batch_size)


def task(url: str, queue: str, dies_after: int, batch_size: int) -> None:
    options: Options = write_options({"url": url, "queue": queue})
    if dies_after:
        _die_after(options, dies_after)
    _publish(iter(rows(batch_size)), IdSource("query 7 0"), options)


def _die_after(options: Options, chunks: int) -> None:
    binding_type: Any = type(options.binding())
    publish, calls = binding_type.publish, 0

    def counted(*args: Any, **kwargs: Any) -> int:
        nonlocal calls
        result: int = publish(*args, **kwargs)
        calls += 1
        if calls == chunks:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    binding_type.publish = counted


@pytest.mark.parametrize("dies_after", [1, 2])
def test_killed_task_publishes_the_rest_when_it_is_repeated(url: str, queue: str, dies_after: int) -> None:
    context = multiprocessing.get_context("spawn")
    codes = []
    for chunks, batch_size in ((dies_after, 10_000), (0, 7_000)):
        process = context.Process(target=task, args=(url, queue, chunks, batch_size))
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes == [-signal.SIGKILL, 0]
    assert backlog(url, queue) == ROWS


def test_two_attempts_at_once_publish_once(url: str, queue: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=task, args=(url, queue, 0, 10_000)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert backlog(url, queue) == ROWS
