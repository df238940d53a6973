"""The faults: each is injected, lasts for a while, and is undone."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis

from babelqueue_spark.testing.proxy import Proxy
from chaos.plan import Fault
from chaos.processes import Program, role_of
from tests.s3 import S3Server
from tests.servers import RedisServer, Server
from tests.servers.cluster import SparkCluster

STALL = 14.0
"""Seconds for which a stalled process stands still: longer than claims last."""
HOUR = 3600.0


@dataclass(frozen=True)
class Place:
    """Where faults are injected.

    Attributes:
        driver: the program with the queries.
        clock: the file with the seconds by which its clocks are off.
        survives: whether the server is killed, or stopped.
    """

    driver: Program
    clock: Path
    server: Server | None = None
    proxy: Proxy | None = None
    store: S3Server | None = None
    cluster: SparkCluster | None = None
    survives: bool = True

    def processes(self, role: str) -> list[psutil.Process]:
        """Processes of Spark's in a role; those of a cluster's executors too."""
        return [process for process in self._all() if role_of(process) == role]

    def _all(self) -> Iterator[psutil.Process]:
        yield from self.driver.processes()
        for worker in self.cluster.workers if self.cluster else []:
            with suppress(psutil.NoSuchProcess):
                yield from psutil.Process(worker.pid).children(recursive=True)


def inject(place: Place, fault: Fault) -> str:
    """Inject a fault, let it last and undo it; what it hit."""
    return FAULTS[fault.kind](place, fault)


def _kill(role: str) -> Callable[[Place, Fault], str]:
    """SIGKILL one process in the role."""

    def kill(place: Place, fault: Fault) -> str:
        found = _await_processes(place, role)
        if not found:
            return f"no {role} there"
        chosen = found[int(fault.choice * len(found))]
        with suppress(psutil.NoSuchProcess):
            chosen.kill()
        return f"one of {len(found)}"

    return kill


def _await_processes(place: Place, role: str) -> list[psutil.Process]:
    deadline = time.monotonic() + 10.0
    while not (found := place.processes(role)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _kill_driver(place: Place, _: Fault) -> str:
    count = len(place.driver.processes())
    place.driver.kill()
    return f"all {count} processes"


def _kill_broker(place: Place, fault: Fault) -> str:
    assert place.server is not None
    if place.survives:
        place.server.kill()
    else:
        place.server.stop()
    time.sleep(fault.seconds / 2)
    place.server.start()
    return "SIGKILL" if place.survives else "stopped"


def _cut(place: Place, fault: Fault) -> str:
    assert place.proxy is not None
    for _ in range(3):
        place.proxy.cut()
        time.sleep(fault.seconds / 3)
    return "three times"


def _delay(place: Place, fault: Fault) -> str:
    assert place.proxy is not None
    seconds = 0.05 + 0.3 * fault.choice
    place.proxy.delay(seconds)
    time.sleep(2 * fault.seconds)
    place.proxy.delay(0.0)
    return f"{seconds:.2f} s an answer"


def _freeze(place: Place, fault: Fault) -> str:
    """Nothing, or only the first bytes of an answer, comes through; then the connections end."""
    assert place.proxy is not None
    after = int(fault.choice * 2000)
    place.proxy.freeze(after)
    time.sleep(2 * fault.seconds)
    place.proxy.cut()
    return f"after {after} bytes"


def _stall(place: Place, _: Fault) -> str:
    """Python workers stand still until their claims have lapsed."""
    found = _await_processes(place, "worker")
    with _each(found, lambda process: process.suspend(), lambda process: process.resume()):
        time.sleep(STALL)
    return f"{len(found)} workers"


def _fill_disk(place: Place, fault: Fault) -> str:
    """No Python process can write more than some bytes into a file: the rest finds no room."""
    limit = int(fault.choice * 4000)
    found = [each for role in ("planner", "daemon", "worker") for each in place.processes(role)]
    with _each(
        found,
        lambda process: process.rlimit(psutil.RLIMIT_FSIZE, (limit, psutil.RLIM_INFINITY)),
        lambda process: process.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY,) * 2),
    ):
        time.sleep(fault.seconds)
    for process in place.processes("worker"):  # forked meanwhile, with the limit of the daemon
        with suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY,) * 2)
    return f"room for {limit} bytes a file"


@contextmanager
def _each(
    processes: list[psutil.Process], begin: Callable[[Any], object], end: Callable[[Any], object]
) -> Iterator[None]:
    with ExitStack() as undone:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                begin(process)
                undone.callback(_unless_ended, end, process)
        yield


def _unless_ended(work: Callable[[Any], object], process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        work(process)


def _step_clock(place: Place, fault: Fault) -> str:
    """The clocks of all Python processes jump, forwards or back, and later jump back."""
    seconds = (fault.choice - 0.5) * 2 * HOUR
    place.clock.write_bytes(struct.pack("d", seconds))
    time.sleep(2 * fault.seconds)
    place.clock.write_bytes(struct.pack("d", 0.0))
    return f"by {seconds:+.0f} s"


def _revoke(place: Place, fault: Fault) -> str:
    """The password becomes another one, the connections end; later it is the old one again."""
    server: Any = place.server
    change = _change_redis if isinstance(server, RedisServer) else _change_rabbitmq
    change(server, server.password, "an0ther-w0rd")
    time.sleep(fault.seconds)
    change(server, "an0ther-w0rd", server.password)
    return f"for {fault.seconds:.0f} s"


def _change_redis(server: RedisServer, old: str, new: str) -> None:
    with redis.Redis(port=server.port, password=old) as client:
        client.config_set("requirepass", new)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")


def _change_rabbitmq(server: Any, _: str, new: str) -> None:
    server.control("change_password", server.login, new)
    server.control("close_all_connections", "the password was changed")


def _store(work: Callable[[S3Server, Fault], str]) -> Callable[[Place, Fault], str]:
    def inject(place: Place, fault: Fault) -> str:
        assert place.store is not None
        said = work(place.store, fault)
        time.sleep(fault.seconds)
        return said

    return inject


def _unavailable(store: S3Server, fault: Fault) -> str:
    count = 1 + int(fault.choice * 20)
    store.be_unavailable(count)
    return f"{count} requests"


def _conflict(store: S3Server, fault: Fault) -> str:
    count = 1 + int(fault.choice * 5)
    store.refuse(count, "409 Conflict")
    return f"{count} requests"


def _lost(store: S3Server, fault: Fault) -> str:
    """What was asked is done, and nothing answered: the put that is repeated meets 412."""
    count = 1 + int(fault.choice * 10)
    store.lose_answers(count)
    return f"{count} answers"


def _late(store: S3Server, fault: Fault) -> str:
    """What was asked is done, and answered after the client's time-out."""
    count = 1 + int(fault.choice * 4)
    store.be_late(count, 4.0)
    return f"{count} answers"


FAULTS: dict[str, Callable[[Place, Fault], str]] = {
    "driver": _kill_driver,
    "jvm": _kill("jvm"),
    "planner": _kill("planner"),
    "worker": _kill("worker"),
    "executor": _kill("executor"),
    "broker": _kill_broker,
    "cut": _cut,
    "delay": _delay,
    "freeze": _freeze,
    "stall": _stall,
    "disk": _fill_disk,
    "clock": _step_clock,
    "password": _revoke,
    "store 503": _store(_unavailable),
    "store 409": _store(_conflict),
    "store lost": _store(_lost),
    "store late": _store(_late),
}
"""By kind."""
