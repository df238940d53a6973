"""`make soak`: a stream at a steady rate for minutes, and large amounts of what is hard.

    python -m chaos soak [--minutes 10] [--rate 500] [--brokers redis,rabbitmq] [--record]

`--record` makes the result the one that the documentation shows (`docs/soak.json`, `docs/soak.svg`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil

from babelqueue_spark.connector.options import read_options
from bench.record import ROOT, commit, machine, versions
from chaos.chart import draw
from chaos.notes import notes
from chaos.processes import Program, role_of
from chaos.setups import SETUPS
from tests.servers import Server
from tests.streams import outgoing

RUNS = ROOT / "build" / "soak"
OF_RECORD = ROOT / "docs" / "soak.json"
QUEUE = "soak"
TICK = 0.1
SAMPLE_SECONDS = 5.0
WARM = 30.0
"""Seconds at the start that no figure is of: the JVM compiles, and Spark starts its workers."""
WAIT = 120.0


def main(arguments: list[str]) -> int:
    """Measure, and say what was found; 1 when not all messages arrived."""
    parser = argparse.ArgumentParser(prog="chaos soak")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each broker")
    parser.add_argument("--rate", type=int, default=500, help="messages a second")
    parser.add_argument("--brokers", default="redis,rabbitmq")
    parser.add_argument("--record", action="store_true", help="keep the result in docs/soak.json")
    given = parser.parse_args(arguments)
    folder = RUNS / time.strftime("%Y%m%dT%H%M%S")
    folder.mkdir(parents=True)
    whole = {
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions("redis"),
        "rate": given.rate,
        "minutes": given.minutes,
        "streams": {
            name: soak(name, folder / name, given.minutes * 60, given.rate)
            for name in given.brokers.split(",")
        },
        "trials": trials(folder),
    }
    file = OF_RECORD if given.record else folder / "soak.json"
    file.write_text(json.dumps(whole, indent=1) + "\n")
    draw(whole, file.with_suffix(".svg"))
    for name, found in whole["streams"].items():
        print(name, {key: value for key, value in found.items() if key != "samples"})
    for trial in whole["trials"]:
        print(trial)
    return int(any(found["published"] != found["arrived"] for found in whole["streams"].values()))


def soak(name: str, folder: Path, seconds: float, rate: int) -> dict[str, Any]:
    """Run a stream with a trigger of one second while messages come at a rate; what was measured."""
    folder.mkdir()
    setup = SETUPS[name]
    assert setup.server is not None
    with ExitStack() as stack:
        server = stack.enter_context(setup.server())
        given = {"url": server.url, "queue": QUEUE, "folder": str(folder), "options": dict(setup.options)}
        description = folder / "description.json"
        description.write_text(json.dumps(given))
        arguments = ["-m", "chaos.soak_driver", str(description)]
        driver = Program(arguments, folder / "driver.log", {"PYTHONPATH": str(ROOT)})
        stack.enter_context(driver)
        publisher = Publisher(server.url, rate)
        stack.callback(publisher.stop)
        samples = Samples(folder, driver, server)
        publisher.start()
        samples.take(seconds)
        published = publisher.stop()
        samples.take_until(lambda: _arrived(folder) >= published)
        (folder / "stop-driver").touch()
        driver.await_end(WAIT)
    return {
        "title": setup.title,
        "published": published,
        "arrived": _arrived(folder),
        **_latencies(folder, samples.committed),
        "samples": samples.found,
    }


class Publisher:
    """Publishes at a rate, each message with the time at which it is published."""

    def __init__(self, url: str, rate: int) -> None:
        self._options = {"url": url, "queue": QUEUE}
        self._rate = rate
        self._published = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """How many were published."""
        self._stopped.set()
        if self._thread.ident:
            self._thread.join()
        return self._published

    def _publish(self) -> None:
        chunk = max(1, int(self._rate * TICK))
        started = time.monotonic()
        with read_options(self._options).binding() as binding:
            while not self._stopped.is_set():
                binding.publish(QUEUE, outgoing(_stamped() for _ in range(chunk)))
                self._published += chunk
                late = started + self._published / self._rate - time.monotonic()
                self._stopped.wait(max(0.0, late))


def _stamped() -> bytes:
    """An envelope with the moment at which it was made, in seconds since 1970."""
    meta = {"id": str(uuid.uuid4()), "queue": QUEUE, "lang": "python", "schema_version": 1, "created_at": 1}
    envelope = {"job": "urn:babel:soak", "trace_id": "t", "data": {"at": time.time()}, "meta": meta}
    return json.dumps({**envelope, "attempts": 0}, separators=(",", ":")).encode()


class Samples:
    """What is counted every few seconds while a stream runs."""

    def __init__(self, folder: Path, driver: Program, server: Server) -> None:
        self.found: list[dict[str, Any]] = []
        self.committed: dict[int, float] = {}
        """Batch → when Spark had committed it, in seconds since 1970."""
        self._folder, self._driver, self._server = folder, driver, server
        self._began = time.monotonic()

    def take(self, seconds: float) -> None:
        """Sample for so long."""
        end = time.monotonic() + seconds
        self.take_until(lambda: time.monotonic() > end, seconds + WAIT)

    def take_until(self, done: Any, seconds: float = WAIT) -> None:
        """Sample until that holds."""
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            self._sample()
            time.sleep(SAMPLE_SECONDS)
        self._sample()

    def _sample(self) -> None:
        for file in (self._folder / "checkpoint" / "commits").glob("[0-9]*"):
            self.committed.setdefault(int(file.name), file.stat().st_mtime)
        self.found.append(
            {
                "second": round(time.monotonic() - self._began, 1),
                "journal files": _files(self._folder / "journal"),
                "checkpoint files": _files(self._folder / "checkpoint"),
                "processes": dict(self._processes()),
            }
        )

    def _processes(self) -> Iterator[tuple[str, list[float]]]:
        """Role → how many processes, descriptors of all of them, MiB of all of them."""
        found: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        for process in [*self._driver.processes(), psutil.Process(self._server.pid)]:
            try:
                role = "broker" if process.pid == self._server.pid else role_of(process)
                numbers = (1, process.num_fds(), round(process.memory_info().rss / 2**20, 1))
            except psutil.NoSuchProcess:
                continue
            found[role] = [round(a + b, 1) for a, b in zip(found[role], numbers, strict=True)]
        yield from sorted(found.items())


def _files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def _arrived(folder: Path) -> int:
    return sum({number: len(times) for number, times in notes(folder / "batches")}.values())


def _latencies(folder: Path, committed: dict[int, float]) -> dict[str, Any]:
    """Seconds from publishing to the commit of the batch, of what was published after the first seconds."""
    batches = dict(notes(folder / "batches"))
    first = min((min(times) for times in batches.values() if times), default=0.0) + WARM
    found = [
        committed[number] - moment
        for number, times in batches.items()
        if number in committed
        for moment in times
        if moment >= first
    ]
    cuts = quantiles(found, n=100) if len(found) > 1 else [0.0] * 99
    return {
        "batches": len(batches),
        "measured": len(found),
        "p50": round(cuts[49], 2),
        "p99": round(cuts[98], 2),
        "longest": round(max(found, default=0.0), 2),
    }


def trials(folder: Path) -> list[dict[str, Any]]:
    """What a program of its own finds with large amounts."""
    result = folder / "trials.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "trials.log").open("wb") as output:
        command = [sys.executable, "-m", "chaos.trials", str(folder), str(result)]
        subprocess.run(command, env=environment, stdout=output, stderr=output, check=True)
    found: list[dict[str, Any]] = json.loads(result.read_text())
    return found
