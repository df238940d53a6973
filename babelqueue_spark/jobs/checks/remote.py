"""What runs on executors. It travels by value: the package may be missing there, or another release."""

import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Errand:
    """What an executor is to check.

    Attributes:
        release: the driver's version of the package.
        needed: extras.
        broker: options of a read; empty = no broker.
        journal: location, options, name and content of a file there; None = no journal.
    """

    release: str
    needed: list[str]
    broker: dict[str, str] = field(default_factory=dict)
    journal: tuple[str, dict[str, str], str, bytes] | None = None


Report = tuple[str, list[tuple[Any, ...]]]
"""Host and port of an executor, and its findings as tuples."""


def report(errand: Errand, _: Iterable[int]) -> Iterator[Report]:
    """Check the executor, in the first of its tasks; all slots of the cluster hold a task at this moment."""
    from pyspark import BarrierTaskContext

    context: Any = BarrierTaskContext.get()
    context.barrier()
    addresses = [task.address for task in context.getTaskInfos()]
    here = addresses[context.partitionId()]
    if addresses.index(here) == context.partitionId():
        yield here, list(_findings(errand))


def _findings(errand: Errand) -> Iterator[tuple[Any, ...]]:
    found = "{}.{}.{}".format(*sys.version_info[:3])
    yield "Python", "ok", f"{found} at {sys.executable}, host {socket.gethostname()}", ""
    try:
        from babelqueue_spark import __version__
        from babelqueue_spark.jobs.checks import broker, machine, storage
        from babelqueue_spark.jobs.checks.findings import explained
    except ImportError as error:
        text = (
            f"cannot be imported ({error}): install babelqueue-spark {errand.release} in the Python of "
            "executors, or bring it with --archives or --py-files"
        )
        yield "babelqueue-spark", "failed", text, ""
        return
    if __version__ != errand.release:
        text = f"{__version__}, the driver's is {errand.release}: install the same on both"
        yield "babelqueue-spark", "failed", text, ""
        return
    findings = list(explained("packages", machine.packages(errand.needed)))
    usable = all(each.status != "failed" for each in findings)
    if usable and errand.broker:
        findings += explained("broker", broker.findings(errand.broker))
    if usable and errand.journal:
        findings += explained("journal", storage.sees(*errand.journal))
    yield from map(astuple, findings)
