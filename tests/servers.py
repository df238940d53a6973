"""Real servers for the tests: started on a free loopback port, stopped by process id."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_START_SECONDS = 20.0
_STOP_SECONDS = 10.0
_TRIES = 5


class StartError(Exception):
    """A server process ended, or did not become ready, with what it had to say."""


class RedisServer:
    """`redis-server` without persistence, in a directory of its own.

    Args:
        password: what clients must give; none by default.
        options: further directives, such as `maxmemory="8mb"`.
    """

    def __init__(self, password: str | None = None, **options: str) -> None:
        self.password = password
        self.port = 0
        self._options = {"requirepass": password, **options} if password else options
        self._process: subprocess.Popen[bytes] | None = None
        self._home = ""

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The connection string, with the password."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}{self.address}/0"

    def __enter__(self) -> Self:
        self._home = tempfile.mkdtemp(prefix="redis-")
        for attempt in range(_TRIES):
            try:
                self._start()
            except StartError:
                if attempt == _TRIES - 1:
                    raise
            else:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def stop(self) -> None:
        """End the process; idempotent."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _start(self) -> None:
        # Somebody may take the port between our look and the server's bind: then it ends, and we try again.
        self.port = free_port()
        directives = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": self._home,
            "save": "",
            "appendonly": "no",
            **self._options,
        }
        command = [
            "redis-server",
            *(word for name, value in directives.items() for word in (f"--{name}", value)),
        ]
        log = Path(self._home) / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            await_ready(self._process, self._answers, log)
        except StartError:
            self.stop()
            raise

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def await_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    """Return once `ready` is true; `StartError` with the log when the process ends or takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if ready():
                return
        except OSError:
            pass
        try:
            process.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
    raise StartError(log.read_text(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
