"""Create an event store, describe it, export its events, follow them, replay them to queues.

    babelqueue-spark events create /srv/events
    babelqueue-spark events describe s3://bucket/events --store-option aws_region=eu-west-1
    babelqueue-spark events export /srv/events acme:article:7 --since 2026-01-01 > events.jsonl
    babelqueue-spark events tail /srv/events --max 100
    babelqueue-spark events replay /srv/events --url env:ORDERS_URL --queue orders --txn rebuild-1
    spark-submit jobs/events.py replay /srv/events --url env:ORDERS_URL --route 'urn:babel:orders:*=orders'

With the id of a stream it takes that stream, else all. `export` writes a JSON object a line, stream by
stream, in order; `jq -r .body` gives the envelopes. `tail` shows the last events and what is appended.
`create`, `describe` and `tail` run without Spark.

`replay` publishes events with their ids and traces, each stream in its order, with a header by which handlers
know a replay; a broker without headers needs `--no-bypass`. Run again with the same `--txn` and options, it
publishes what a killed run had not, on Redis, SQL and Kafka.
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
from babelqueue_spark.jobs.arguments import Arguments, JobError, count, option, pair, place
from babelqueue_spark.jobs.command import given_options, job, new_console, printable, session, show


def _add_options(parser: Arguments) -> None:
    parser.add_argument("action", choices=[*_ACTIONS], help="what to do")
    parser.add_argument("location", type=place, help="of the store: a folder, or the URL of an object store")
    parser.add_argument("stream", nargs="?", help="export, tail, replay: of one stream (default: of all)")
    store = "of the object store, such as aws_region=eu-west-1"
    parser.add_several("store-option", "NAME=VALUE", store, type=option)
    parser.add_argument("--since", type=moment, metavar="TIME", help="export, replay: what occurred after it")
    parser.add_argument(
        "--until", type=moment, metavar="TIME", help="export, replay: what occurred before it"
    )
    parser.add_argument("--json", action="store_true", help="describe, tail: JSON, as export writes it")
    parser.add_argument(
        "--lines", type=count, default=10, help="tail: most events at the start (default: 10)"
    )
    parser.add_argument("--once", action="store_true", help="tail: end when these are shown")
    parser.add_argument("--max", type=count, metavar="N", help="tail: end after so many events")
    parser.add_every()
    parser.add_broker(queue="replay: where all events go", required=False, url_required=False)
    route = "replay: where events of a URN go, * for any text, others stay"
    parser.add_several("route", "URN=QUEUE", route, type=pair)
    parser.add_argument("--txn", metavar="NAME", help="replay: by which a repeat publishes what was missing")
    parser.add_argument(
        "--no-bypass", action="store_true", help="replay: without the header that marks a replay"
    )
    parser.add_argument("--dry-run", action="store_true", help="replay: only show what would be published")
    parser.refuse(
        "replay needs --url, and either --queue or --route",
        lambda given: (
            given.action == "replay" and (given.url is None or bool(given.queue) == bool(given.route))
        ),
    )


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    store = exchange.EventStore(given.location, dict(given.store_option))
    console = new_console(soft_wrap=True)
    if given.action != "create" and not store.exists():
        raise JobError(f"{given.location} is no event store: make one by 'events create', or name another")
    _ACTIONS[given.action](store, given, console)


def moment(text: str) -> datetime:
    """Return a time in the notation of ISO 8601; without a zone, of this host's."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as '2026-01-31 12:00'") from None


def _create(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    there = store.exists()
    store.create()
    console.print(f"{given.location} {'was there' if there else 'is made'}", markup=False, highlight=False)


def _describe(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    found = vars(store.describe())
    if given.json:
        print(json.dumps(found))
    else:
        show(console, ("version", "streams", "events", "files", "bytes"), [found.values()])


def _export(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
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


def _tail(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    left = given.max
    for events in store.tail(given.stream, given.lines):
        for row in events.slice(0, left).to_pylist():
            console.print(json_line(row) if given.json else line(row), markup=False, highlight=False)
        if left is not None:
            left -= min(left, len(events))
        if given.once or left == 0:
            return
        sleep(given.every)


def _replay(store: exchange.EventStore, given: argparse.Namespace, console: Console) -> None:
    found = store.replay(
        session("events replay"),
        given_options(given),
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


_ACTIONS = {"create": _create, "describe": _describe, "export": _export, "tail": _tail, "replay": _replay}


if __name__ == "__main__":
    raise SystemExit(main())
