"""Programs of a trial: started in a session of their own, started again when they end, and killed whole."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil


class Program:
    """A Python program, as a context manager.

    Args:
        arguments: of the interpreter.
        log: what it prints is appended to this file.
        environment: further variables.
    """

    def __init__(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.starts = 0
        self._arguments = arguments
        self._log = log
        self._environment = {**os.environ, **environment}
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, daemon=True)

    def __enter__(self) -> Program:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.await_end(0.0)

    def await_end(self, seconds: float) -> bool:
        """Let it end by itself, and do not start it again; kill it when it has not. Whether it has."""
        self._stopping.set()
        process = self._process
        ended = process is None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                ended = True
        while self._thread.is_alive():  # it may just have been started again
            self.kill()
            self._thread.join(0.2)
        return ended

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """All processes of its session."""
        leader = self._process.pid if self._process else 0
        return [process for process in psutil.process_iter() if leader and session_of(process) == leader]

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            with self._log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, *self._arguments],
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                    start_new_session=True,
                )
            self.starts += 1
            self._process.wait()
            self.kill()  # what it has left behind
            self._stopping.wait(0.2)


def session_of(process: psutil.Process) -> int:
    """The id of the session of a process; 0 when it has ended."""
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return 0


def role_of(process: psutil.Process) -> str:
    """What a process of Spark's is: `driver`, `jvm`, `planner`, `daemon`, `worker`, `executor` or `other`."""
    try:
        words = process.cmdline()
        if "pyspark.daemon" in words:
            parent = process.parent()
            return "worker" if parent and "pyspark.daemon" in parent.cmdline() else "daemon"
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return "other"
    if not words:  # a zombie
        return "other"
    command = " ".join(words)
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if Path(words[0]).name == "java" and "org.apache.spark" in command:
        return "jvm"
    if "pyspark" in command:
        return "planner"
    return "driver" if "chaos." in command else "other"
