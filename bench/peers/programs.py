"""The peers: where they are installed, and the command of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import psutil

from bench.peers.run import Run, Supervise
from bench.peers.work import IN_FLIGHT, TOLD

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".venv-bench"
STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Peer:
    """A program of the environment `HOME`, with its module here and its commands, which run two processes."""

    name: str
    no_op: tuple[str, ...]
    waiting: tuple[str, ...]

    @property
    def title(self) -> str:
        places = [str(each) for each in HOME.glob("lib/*/site-packages")]
        found = next(iter(distributions(name=self.name, path=places)))
        return f"{found.metadata['Name']} {found.version}"

    def fill(self, run: Run) -> None:
        program = f"from bench.peers.{self.name} import fill; fill({run.count})"
        self._start(run, ["python", "-c", program]).wait()

    @contextmanager
    def running(self, run: Run) -> Iterator[Supervise]:
        commands = [each.split() for each in (self.waiting if run.seconds else self.no_op)]
        processes = [self._start(run, each) for each in commands]

        def supervise() -> None:
            for place, process in enumerate(processes):
                if process.poll() is not None:
                    processes[place] = self._start(run, commands[place])

        try:
            yield supervise
        finally:
            stop(processes)

    def _start(self, run: Run, command: list[str]) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(HOME / "bin"), os.environ["PATH"]])
        told = json.dumps([run.url, run.queue, str(run.ledger), run.seconds])
        variables = {**os.environ, TOLD: told, "PATH": path, "PYTHONPATH": str(ROOT)}
        with (run.folder / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


CELERY = "celery -A bench.peers.celery worker --without-gossip --without-mingle --without-heartbeat"
TASKIQ = (
    "taskiq worker bench.peers.taskiq:broker --log-level WARNING --ack-type when_executed"
    f" --workers 2 --max-async-tasks {IN_FLIGHT}"
)
FASTSTREAM = "faststream run bench.peers.faststream:app --workers 2 --log-level warning"
PEERS = [
    Peer(
        "celery",
        no_op=(f"{CELERY} -P prefork -c 2 --prefetch-multiplier 128",),
        waiting=(f"{CELERY} -P gevent -c {IN_FLIGHT} --prefetch-multiplier 1",) * 2,
    ),
    Peer("taskiq", no_op=(TASKIQ,), waiting=(TASKIQ,)),
    Peer(
        "dramatiq",
        no_op=("env dramatiq_queue_prefetch=1000 dramatiq bench.peers.dramatiq -p 2 -t 8",),
        waiting=(f"dramatiq-gevent bench.peers.dramatiq -p 2 -t {IN_FLIGHT}",),
    ),
    Peer("faststream", no_op=(FASTSTREAM,), waiting=(FASTSTREAM,)),
]


def install() -> None:
    """Make the environment of the peers, unless it is newer than the extra that names them."""
    project, made = ROOT / "pyproject.toml", HOME / "installed"
    if made.exists() and made.stat().st_mtime > project.stat().st_mtime:
        return
    extra = tomllib.loads(project.read_text())["project"]["optional-dependencies"]["bench"]
    subprocess.run([ROOT / "scripts" / "install.sh", sys.executable, HOME, "--upgrade", *extra], check=True)
    made.touch()


def stop(leaders: list[subprocess.Popen[bytes]]) -> None:
    """End these processes and all that they started."""
    running = [psutil.Process(each.pid) for each in leaders if each.poll() is None]
    children = [child for each in running for child in each.children(recursive=True)]
    for each in leaders:
        each.terminate()
    for each in leaders:
        with suppress(subprocess.TimeoutExpired):
            each.wait(STOP_SECONDS)
        each.kill()
        each.wait()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
