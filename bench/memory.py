"""What a stream keeps in memory as the backlog grows: its reader on the driver, and the largest worker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import redis as client

from bench.redis import CHUNK, PER_TRIGGER, body, session
from bench.table import Row, new_queue, read_progress, row
from tests.servers import RedisServer

FEW, MANY, MOST = 10_000, 1_000_000, 3_000_000
SAMPLE_SECONDS = 0.05
#: In the command line of each kind of Python process.
DRIVER, WORKER = b"python_streaming_source_runner", b"pyspark.daemon"


def rows(*, long: bool = False) -> list[Row]:
    """Peaks in MiB against those of a small backlog; `long` adds the largest one."""
    sizes = [FEW, MANY, MOST] if long else [FEW, MANY]
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        redis = client.Redis.from_url(server.url)
        spark = session()
        read(spark, server.url, redis, 2 * PER_TRIGGER, Path(folder))  # what is made once is no growth
        peaks = {size: read(spark, server.url, redis, size, Path(folder)) for size in sizes}
        spark.stop()
    return [
        row(
            f"{kind}, {FEW:,} queued",
            peaks[FEW][place],
            f"the same, {size:,} queued",
            peaks[size][place],
            0.8,
            "MiB",
        )
        for size in sizes[1:]
        for place, kind in enumerate(("driver's Python", "largest worker"))
    ]


def read(spark: Any, url: str, redis: client.Redis, count: int, folder: Path) -> tuple[float, float]:
    """MiB that the driver's reader and the largest worker take at most while a backlog is read."""
    queue = new_queue()
    for first in range(0, count, CHUNK):
        redis.rpush(queue, *(body(number) for number in range(first, min(first + CHUNK, count))))
    options = {"maxMessagesPerTrigger": PER_TRIGGER, "maxBytesPerTrigger": "1g"}
    with sampled() as peaks:
        progress = read_progress(spark, url, queue, folder / queue, **options)
    assert sum(entry["numInputRows"] for entry in progress) == count
    return peaks[DRIVER], peaks[WORKER]


@contextmanager
def sampled() -> Iterator[dict[bytes, float]]:
    """MiB of the largest process of each kind, as often looked at as it takes to see a batch's peak."""
    peaks = {DRIVER: 0.0, WORKER: 0.0}
    ended = Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            for kind, resident in resident_sizes():
                peaks[kind] = max(peaks[kind], resident)

    with ThreadPoolExecutor(1) as watcher:
        watched = watcher.submit(watch)
        yield peaks
        ended.set()
        watched.result()


def resident_sizes() -> Iterator[tuple[bytes, float]]:
    """The kind and the resident MiB of each of PySpark's Python processes in this session."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            ours = os.getsid(int(status.parent.name)) == os.getsid(0)
            command = (status.parent / "cmdline").read_bytes() if ours else b""
            kind = next((kind for kind in (DRIVER, WORKER) if kind in command), None)
            if kind:
                lines = status.read_text().splitlines()
                yield kind, next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
        except (OSError, StopIteration):  # it has just ended
            continue
