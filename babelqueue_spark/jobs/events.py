"""Create an event store, describe it, export its events, follow them, replay them to queues.

    babelqueue-spark events create /srv/events
    babelqueue-spark events describe s3://bucket/events --store-option aws_region=eu-west-1
    babelqueue-spark events export /srv/events acme:article:7 --since 2026-01-01 > events.jsonl
    babelqueue-spark events tail /srv/events --max 100
    babelqueue-spark events replay /srv/events --url env:ORDERS_URL --queue orders --txn rebuild-1
    spark-submit jobs/events.py replay /srv/events --url env:ORDERS_URL --route 'urn:babel:orders:*=orders'

With the id of a stream it takes that stream, else all of them. `export` writes a JSON object a line, stream
by stream, in order; `jq -r .body` gives the envelopes as they were stored. `tail` shows the last events and
what is appended. `create`, `describe` and `tail` run without Spark.

`replay` publishes events with their ids and traces, those of a stream in their order, with a header by
which handlers know a replay; a broker without headers needs `--no-bypass`. Run again with the same `--txn`
and options, a run that was killed publishes what was missing of the events that the store had at first,
where the broker is Redis, SQL or Kafka.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from time import sleep
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from rich.console import Console

from babelqueue_spark import exchange
from babelqueue_spark.bindings.options import seconds
from babelqueue_spark.jobs.command import (
    Arguments,
    JobError,
    count,
    job,
    new_console,
    option,
    pair,
    place,
    printable,
    reference,
    session,
    show,
)

_ACTIONS = ("create", "describe", "export", "tail", "replay")


@job
def main(arguments: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    given = parse(arguments)
    store = exchange.EventStore(given.location, dict(given.store_option))
    console = new_console(soft_wrap=True)
    if given.action != "create" and not store.exists():
        raise JobError(f"{given.location} is no event store: make one by 'events create', or name another")
    {"create": create, "describe": describe, "export": export, "tail": tail, "replay": replay}[given.action](
        store, given, console
    )
    return 0


def command_line() -> Arguments:
    """Make the parser of the command line."""
    parser = Arguments("events", __doc__)
    parser.add_argument("action", choices=_ACTIONS, help="what to do")
    parser.add_argument("location", type=place, help="of the store: a folder, or the URL of an object store")
    parser.add_argument("stream", nargs="?", help="export, tail, replay: of one stream (default: of all)")
    parser.add_argument(
        "--store-option",
        action="append",
        default=[],
        type=option,
        metavar="NAME=VALUE",
        help="of the object store, such as aws_region=eu-west-1; may be repeated",
    )
    parser.add_argument("--since", type=moment, metavar="TIME", help="export, replay: what occurred after it")
    parser.add_argument(
        "--until", type=moment, metavar="TIME", help="export, replay: what occurred before it"
    )
    parser.add_argument("--json", action="store_true", help="describe, tail: JSON, as export writes it")
    _add_tail(parser.add_argument_group("tail"))
    _add_replay(parser.add_argument_group("replay"))
    return parser


def _add_tail(group: Any) -> None:
    group.add_argument("--lines", type=count, default=10, help="most events at the start (default: 10)")
    group.add_argument("--once", action="store_true", help="end when these are shown")
    group.add_argument("--max", type=count, metavar="N", help="end after so many events")
    group.add_argument(
        "--every", type=seconds, default=2.0, metavar="TIME", help="between two looks (default: 2s)"
    )


def _add_replay(group: Any) -> None:
    group.add_argument("--url", type=reference, help="the broker, or env:NAME, or file:/path")
    group.add_argument("--queue", help="where all events go")
    group.add_argument(
        "--route",
        action="append",
        default=[],
        type=pair,
        metavar="URN=QUEUE",
        help="where events of a URN go, * for any text, others stay; may be repeated",
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        type=option,
        metavar="NAME=VALUE",
        help="a further option of the connector, such as redis.laravel=true; may be repeated",
    )
    group.add_argument("--txn", metavar="NAME", help="by which a repeat publishes what was missing")
    group.add_argument("--no-bypass", action="store_true", help="without the header that marks a replay")
    group.add_argument("--dry-run", action="store_true", help="only show what would be published")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line; exits with 2 when it is wrong."""
    parser = command_line()
    given = parser.parse_args(arguments)
    if given.action == "replay" and (given.url is None or bool(given.queue) == bool(given.route)):
        parser.error("replay needs --url, and either --queue or --route")
    return given


def moment(text: str) -> datetime:
    """Return a time in the notation of ISO 8601; without a zone, of this host's."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as '2026-01-31 12:00'") from None


def create(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    """Make the store where it is missing."""
    there = store.exists()
    store.create()
    console.print(f"{given.location} {'was there' if there else 'is made'}", markup=False, highlight=False)


def describe(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    """Print how much the store holds."""
    found = vars(store.describe())
    if given.json:
        print(json.dumps(found))
    else:
        show(console, ("version", "streams", "events", "files", "bytes"), [found.values()])


def export(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    """Print events as JSON lines."""
    del console
    spark = session("events export")
    for row in lines(store.events(spark, given.stream, given.since, given.until)).toLocalIterator():
        print(row.line)


def lines(events: DataFrame) -> DataFrame:
    """Events as JSON lines, stream by stream, each in its order."""

    def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"line": [json_line(row) for row in batch.to_pylist()]})

    return events.orderBy("stream", "occurred_at", "event_id").mapInArrow(written, "line STRING")


def tail(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    """Print the last events, then what is appended."""
    left = given.max
    for events in store.tail(given.stream, given.lines):
        for row in events.slice(0, left).to_pylist():
            console.print(json_line(row) if given.json else line(row), markup=False, highlight=False)
        if left is not None:
            left -= min(left, len(events))
        if given.once or left == 0:
            return
        sleep(given.every)


def replay(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    """Publish events again."""
    options = {"url": given.url, **dict(given.option)}
    if given.queue:
        options["queue"] = given.queue
    found = store.replay(
        session("events replay"),
        options,
        given.route or None,
        stream=given.stream,
        since=given.since,
        until=given.until,
        txn=given.txn,
        bypass=not given.no_bypass,
        dry_run=given.dry_run,
    )
    rows = [*found.messages.items(), *([("(no route)", found.unrouted)] if found.unrouted else [])]
    show(console, ("would go to" if given.dry_run else "went to", "messages"), rows)


def line(row: dict[str, Any]) -> str:
    """Return an event for a person."""
    columns = (row["stream"], row["job"], row["event_id"], row["body"].decode())
    return printable(f"{row['occurred_at']:%Y-%m-%d %H:%M:%S} {' '.join(columns)}")


def json_line(row: dict[str, Any]) -> str:
    """Return all columns of an event; the body as text."""
    occurred_at = row["occurred_at"].astimezone(UTC).isoformat(timespec="microseconds")
    return json.dumps({**row, "occurred_at": occurred_at, "body": row["body"].decode()}, ensure_ascii=False)


if __name__ == "__main__":
    raise SystemExit(main())
