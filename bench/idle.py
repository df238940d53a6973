"""What an idle stream sends its broker: `python -m bench.idle` (not part of `make bench`, which compares).

The driver's reader is asked for the next offset as often as Spark would at the shortest trigger; executors
have nothing open between triggers. Counted are the TCP segments with data that this process sends to the
server's port, which for these protocols is one a request or heartbeat; closed connections are included. All
brokers idle side by side for two minutes, asked every 50 ms: 60 polls a minute are the most.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.datasource import BabelQueueDataSource
from tests.brokers import DURABLE

QUEUE = "idle"
SECONDS = 120.0
TRIGGER_SECONDS = 0.05
_INFO_BYTES, _SEGMENTS_AT = 192, 156  # struct tcp_info, and tcpi_data_segs_out in it


class IdleStream:
    """The driver's side of a query that finds nothing."""

    def __init__(self, url: str, folder: Path) -> None:
        options = {"url": url, "queue": QUEUE, "journalLocation": str(folder)}
        self._reader = BabelQueueDataSource(options).streamReader(SCHEMA)
        self._offset = self._reader.initialOffset()

    def trigger(self) -> None:
        """What Spark asks at each trigger."""
        self._offset = self._reader.latestOffset(self._offset)

    def stop(self) -> None:
        self._reader.stop()


class Segments:
    """Segments that this process sent to a port, those of connections that are closed by now among them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sent: dict[int, int] = {}  # inode of a socket → segments

    def count(self) -> int:
        """So far; to be asked often, since a closed connection tells nothing."""
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # of files that are closed by now, and sockets without a peer
                if entry.is_socket():
                    self._look(int(entry.name))
        return sum(self._sent.values())

    def _look(self, descriptor: int) -> None:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family == socket.AF_INET and connection.getpeername()[1] == self._port:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                (sent,) = struct.unpack_from("=I", info, _SEGMENTS_AT)
                self._sent[os.fstat(descriptor).st_ino] = sent


def main() -> None:
    """Print segments a minute of each broker, all of them idle side by side."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        streams: list[IdleStream] = []
        counts: dict[str, Callable[[], int]] = {}
        for name, make in DURABLE.items():
            server = stack.enter_context(make())
            streams.append(IdleStream(server.url, folder / name))
            counts[name] = Segments(server.port).count
        for stream in streams:
            stack.callback(stream.stop)
        spend(10.0, streams, counts)
        before = {name: count() for name, count in counts.items()}
        started = time.monotonic()
        spend(SECONDS, streams, counts)
        minutes = (time.monotonic() - started) / 60
        for name, count in counts.items():
            print(f"{name:12} {(count() - before[name]) / minutes:6.0f} a minute")


def spend(seconds: float, streams: list[IdleStream], counts: dict[str, Callable[[], int]]) -> None:
    """Trigger all streams until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for stream in streams:
            stream.trigger()
        for count in counts.values():
            count()
        time.sleep(TRIGGER_SECONDS)


if __name__ == "__main__":
    main()
