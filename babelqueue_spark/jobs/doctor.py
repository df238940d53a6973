"""Check an installation, a broker, a journal and a cluster: OK, or what to do.

    babelqueue-spark doctor
    babelqueue-spark doctor --url env:ORDERS_URL --queue orders --probe --json findings.json
    spark-submit jobs/doctor.py --master spark://host:7077 --url env:ORDERS_URL --queue orders \\
        --journal s3://streams/orders/journal

It checks, also where packages are missing: Python, Java, PySpark with its table
formats, packages; the broker's backlog and clock; a journal's storage. With `--master`, a job on all
executors checks packages, broker and journal from there; else it needs no Spark.

It consumes nothing, and creates nothing but the subscription on Pulsar. `--probe` publishes a message to a
queue of its own, claims and acknowledges it. Where queues must exist before, or messages stay, name an empty
one that nobody else uses: `--probe QUEUE`. Pulsar keeps the topic.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.jobs.arguments import Arguments, Job, JobError, place
from babelqueue_spark.jobs.checks import broker, cluster, machine, storage
from babelqueue_spark.jobs.checks.findings import Finding, explained

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="one queue, or several with commas", required=False, url_required=False)
    parser.add_argument("--journal", metavar="PATH", type=place, help="a journal's directory, or URL")
    parser.add_argument(
        "--probe",
        nargs="?",
        const="",
        metavar="QUEUE",
        help="publish a message and take it again (default: in a queue of its own)",
    )
    parser.add_argument("--master", metavar="URL", help="check the executors of this cluster, too")
    parser.add_argument("--json", metavar="FILE", help="write the findings as JSON, too")
    parser.refuse("--url and --queue go together", lambda given: bool(given.url) != bool(given.queue))
    parser.refuse("--probe needs --url and --queue", lambda given: given.probe is not None and not given.url)


@partial(Job, add_options=_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    show = _printer()
    found = []
    for each in findings(given):
        show(each)
        found.append(each)
    if given.json:
        _write(given.json, as_json(found))
    bad = [each for each in found if each.status == "failed"]
    if bad:
        raise JobError(f"{len(bad)} of {len(found)} checks failed: {'; '.join(map(_line, bad))}")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise JobError(f"{path} cannot be written ({error.strerror})") from None


def findings(given: argparse.Namespace) -> Iterator[Finding]:
    """Yield all that is asked for, one check after the other."""
    options = {name.lower(): value for name, value in given.option}
    needed = _needed(given, options)
    of_broker = {name: value for name, value in options.items() if not name.startswith("journal.")}
    read = {"url": given.url, "queue": given.queue, **of_broker} if given.url else {}
    yield from machine.findings(needed)
    if read:
        yield from explained("broker", broker.findings(read, given.probe))
    if given.journal:
        yield from explained("journal", storage.findings(given.journal, options))
    if given.master:
        journal = (given.journal, options) if given.journal else None
        yield from explained("cluster", cluster.findings(given.master, needed, read, journal))


def as_json(found: list[Finding]) -> str:
    """Return the findings as a JSON object; `ok` is whether none has failed."""
    good = all(each.status != "failed" for each in found)
    return json.dumps({"ok": good, "findings": [asdict(each) for each in found]}, indent=2)


def _needed(given: argparse.Namespace, options: dict[str, str]) -> list[str]:
    """Extras of what is to be checked; what hinders telling is said by the check itself."""
    try:
        of_broker = broker.extra_of(given.url, options.get("broker")) if given.url else ""
    except (BabelQueueError, ImportError):
        of_broker = ""
    bucket = "://" in (given.journal or "") and not given.journal.startswith("file:")
    return [extra for extra in (of_broker, "objectstore" if bucket else "") if extra]


def _printer() -> Callable[[Finding], None]:
    """Print a finding a line; in colours where rich is installed."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return lambda each: print(f"{each.status:7}  {_line(each)}")
    console = Console(soft_wrap=True, highlight=False)

    def show(each: Finding) -> None:
        console.print(Text.assemble((f"{each.status:7}", _COLOURS[each.status]), "  ", _line(each)))

    return show


def _line(each: Finding) -> str:
    where = f"executor {each.where}, " if each.where else ""
    line = f"{where}{each.check}: {each.text}"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


if __name__ == "__main__":
    raise SystemExit(main())
