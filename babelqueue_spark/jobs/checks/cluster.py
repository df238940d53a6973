"""The executors of a cluster: Python, packages, the broker from there, and the journal."""

import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from babelqueue_spark import __version__
from babelqueue_spark.jobs.checks import remote, storage
from babelqueue_spark.jobs.checks.findings import Finding, failed, ok, warning

_CONNECT_SECONDS = 5.0
_EXECUTORS_SECONDS = 60.0
_SETTLED_SECONDS = 3.0
"""So long no further executor has come, when the cluster has given all that it has."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.task.cpus": "1",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "15",
}
"""A task in each slot at the same moment, so that each executor has one."""


def findings(
    master: str,
    needed: Sequence[str],
    broker: Mapping[str, str],
    journal: tuple[str, Mapping[str, str]] | None,
) -> Iterator[Finding]:
    """Check all executors of a cluster, as `Errand` says, by a job that needs no package there."""
    if not _listens(master):
        yield failed("cluster", f"{master} cannot be reached: check host, port and that the master runs")
        return
    with ExitStack() as stack:
        seen = None
        if journal is not None:
            store, folder = stack.enter_context(storage.opened(*journal))
            seen = (journal[0], dict(journal[1]), f"{folder}/driver", f'{{"{uuid.uuid4()}"}}'.encode())
            store.create(seen[2], seen[3])
        errand = remote.Errand(__version__, list(needed), dict(broker), seen)
        context = _started(master)
        stack.callback(context.stop)
        executors = _executors(context)
        if not executors:
            yield failed(
                "cluster",
                f"{master} gave no executor within {_EXECUTORS_SECONDS:g} s: look there for free cores and "
                "memory, and for other applications",
            )
            return
        reports = _reports(context, errand)
        yield ok("cluster", f"{master}: Spark {context.version}, executors checked: {len(reports)}")
        if len(reports) < executors:
            yield warning("cluster", f"{executors} executors were there: {executors - len(reports)} ended")
        for where, found in sorted(reports):
            yield from (replace(Finding(*each), where=where) for each in found)


def _listens(master: str) -> bool:
    """Return whether one of the masters accepts connections; True where the URL names none."""
    scheme, colon, addresses = master.partition("://")
    if scheme != "spark" or not colon:
        return True
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
                return True
        except (OSError, ValueError):
            continue
    return False


def _started(master: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("babelqueue-spark doctor").master(master)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate().sparkContext


def _executors(context: Any) -> int:
    """Return how many there are, once no more come; the driver is one where it runs tasks."""
    spark = context._jsc.sc()
    if spark.isLocal():
        return 1
    deadline = time.monotonic() + _EXECUTORS_SECONDS
    known, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        found = spark.getExecutorMemoryStatus().size() - 1
        if found != known:
            known, since = found, time.monotonic()
        elif known and time.monotonic() - since > _SETTLED_SECONDS:
            break
        time.sleep(0.1)
    return known


def _reports(context: Any, errand: remote.Errand) -> list[remote.Report]:
    from pyspark import cloudpickle

    by_value: Any = cloudpickle
    spark = context._jsc.sc()
    slots = spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile())
    by_value.register_pickle_by_value(remote)
    try:
        tasks = context.parallelize(range(slots), slots).barrier()
        reports: list[remote.Report] = tasks.mapPartitions(partial(remote.report, errand)).collect()
    finally:
        by_value.unregister_pickle_by_value(remote)
    return reports
