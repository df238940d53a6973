"""What all test servers share: a free loopback port, a directory of their own, an end by process id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil

_STOP_SECONDS = 30.0
_TRIES = 5


class StartError(Exception):
    """A server process ended, or did not become ready, with what it had to say."""


class Server(ABC):
    """A server process, as a context manager; it can be stopped and started again with its data."""

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 60.0
    """How long it may take to become ready."""

    def __init__(self) -> None:
        self.port = 0
        self.home = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The connection string, with the password."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments, for `port` and `home`."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers; `OSError` means no."""

    def prepare(self) -> None:  # noqa: B027 (most have nothing to prepare)
        """Make what must lie in `home` before the first start."""

    def environment(self) -> Mapping[str, str]:
        """Further variables of the process."""
        return {}

    def user(self) -> str | None:
        """The user to run as, where the server refuses to run as root."""
        return None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the process, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """What the process printed."""
        return self.home / "log"

    def __enter__(self) -> Self:
        for attempt in range(_TRIES):
            # Somebody may take the port between our look and the server's bind: then it ends, and we try again.
            self.port = free_port()
            self.home = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
            self.home.chmod(0o755)
            if self.user():
                shutil.chown(self.home, self.user())
            try:
                self.prepare()
                self.start()
            except StartError:
                self._remove()
                if attempt == _TRIES - 1:
                    raise
            else:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._remove()

    def start(self) -> None:
        """Start on the same port, with the data of before; `StartError` when it does not become ready."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env={**os.environ, **self.environment()},
                user=self.user(),
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise

    @property
    def runs(self) -> bool:
        """Whether it was started, and neither stopped nor killed."""
        return self._process is not None

    def stop(self) -> None:
        """End the process; idempotent."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the process and all that it started by SIGKILL: it saves nothing."""
        assert self._process is not None
        leader = psutil.Process(self._process.pid)
        for process in [leader, *leader.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None

    @contextmanager
    def running_afterwards(self) -> Iterator[Self]:
        """For a test that may stop it, though others use it too."""
        try:
            yield self
        finally:
            if self._process is None:
                self.start()

    def run(self, *command: str, **variables: str) -> None:
        """Run a tool of the server's to its end; `StartError` with what it printed when it fails."""
        done = subprocess.run(
            command,
            cwd=self.home,
            env={**os.environ, **self.environment(), **variables},
            user=self.user(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StartError(f"{command[0]}: {done.stdout}{done.stderr}")

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_seconds
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if self.ready():
                    return
            except OSError:
                pass
            try:
                process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
        raise StartError(f"{self.name}: {self.log.read_text(errors='replace')}")

    def _remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody accepts connections on a loopback port."""
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
