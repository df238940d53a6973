"""The job serve: its address, its end, and what it refuses."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.jobs.conftest import Run
from tests.programs import INTERRUPTIBLE, ROOT, without

SECONDS = 120


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The job as a process, and the address that it prints."""
    command = [*INTERRUPTIBLE, sys.executable, "-m", "babelqueue_spark.jobs", "serve", "--port", "0"]
    with subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def state(url: str) -> http.client.HTTPResponse:
    """The stream of states, which stays open."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=SECONDS)
    headers = {"Authorization": f"Bearer {parts.fragment.removeprefix('token=')}"}
    connection.request("GET", "/api/state", headers=headers)
    return connection.getresponse()


def test_it_serves_until_it_is_interrupted(sqlite: str) -> None:
    """Also while a browser listens."""
    with started("--url", sqlite, "--queue", "orders") as (process, url):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[\w-]{32}", url)
        with state(url) as events:
            assert events.readline().startswith(b'data: {"address":"sqlite:')
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out, err) == (130, "", "serve: interrupted\n")


def test_a_broker_that_is_away_is_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:s3cret@127.0.0.1:1")
    with (
        started("--url", f"file:{tmp_path}/url", "--queue", "orders", "--every", "0.1s") as (_, url),
        state(url) as events,
    ):
        seen = b""
        while b"BABELQUEUE_BROKER_UNREACHABLE" not in seen:
            line = events.readline()
            assert line, "the stream ended"
            seen += line
    assert b"127.0.0.1:1" in seen
    assert b"s3cret" not in seen


def test_a_port_that_is_taken(sqlite: str, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--url", sqlite, "--queue", "orders", "--port", str(port))
    expected = f"serve: port {port} is taken: give another one with --port, or 0 for any\n"
    assert done == (1, "", expected)


def test_options_that_are_wrong(sqlite: str, run: Run) -> None:
    for option in ("nonsense=1", "deadLetterStyle=mine"):
        done = run("serve", "--url", sqlite, "--queue", "orders", "--option", option)
        assert (done.code, len(done.err.splitlines())) == (1, 1)
        assert option.partition("=")[0] in done.err


def test_metrics_without_their_package(sqlite: str, tmp_path: Path) -> None:
    program = "from babelqueue_spark.jobs.__main__ import main\nsys.exit(main())"
    queue = ["serve", "--url", sqlite, "--queue", "orders", "--metrics", "http://127.0.0.1:1/metrics"]
    done = without(["prometheus_client"], program, tmp_path, *queue)
    assert done.returncode == 1
    assert done.stderr.endswith('pip install "babelqueue-spark[metrics]"\n')
