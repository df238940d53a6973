"""Publish the messages of a schedule that are due; list what waits, cancel jobs.

    babelqueue-spark release --schedule sqlite:////srv/schedule.db --url redis://localhost:6379/0 --every 1s
    babelqueue-spark release --schedule env:SCHEDULE_URL --url env:ORDERS_URL --queue orders --ahead 30s
    babelqueue-spark release list --schedule env:SCHEDULE_URL --json | jq .send_at
    babelqueue-spark release cancel --schedule env:SCHEDULE_URL --id publish-42 --id expire-42

Without `--every` it publishes what is due, then stops. With it, it continues until it is interrupted, and
passes over a broker or a database that is away. Several may run at once. A run that was killed is repeated
without loss, and without repeats where the broker is Redis, SQL or Kafka. `list` shows jobs in the order in
which they were first scheduled. `cancel` says how many still waited. It runs without Spark.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from time import sleep
from typing import Any

from babelqueue_spark import exchange
from babelqueue_spark.bindings.options import seconds
from babelqueue_spark.errors import BrokerFullError, BrokerUnreachableError, QueuesFailedError
from babelqueue_spark.jobs.command import Arguments, count, job, new_console, option, printable, reference

_TABLE = "babelqueue_schedule"


@job
def main(arguments: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    given = parse(arguments)
    logging.basicConfig(format="release: %(message)s")
    schedule = exchange.Schedule(given.schedule, table=given.table)
    console = new_console(soft_wrap=True)
    if given.action == "list":
        for row in listed(schedule):
            console.print(json_line(row) if given.json else line(row), markup=False, highlight=False)
        return 0
    if given.action == "cancel":
        console.print(f"cancelled {schedule.cancel(given.id)} of {len({*given.id})} jobs")
        return 0
    options = {"url": given.url, **dict(given.option)}
    if given.queue:
        options["queue"] = given.queue
    failed = 0
    while True:
        try:
            released = schedule.release(options, limit=given.limit, ahead=given.ahead)
        except (BrokerUnreachableError, BrokerFullError, QueuesFailedError) as error:
            if given.every is None:
                raise
            print(f"release: {error}", file=sys.stderr)
        else:
            failed += released.failed
            if given.every is None or released.messages or released.failed:
                console.print(f"released {released.messages:,} messages, {released.failed:,} failed")
        if given.every is None:
            return 1 if failed else 0
        sleep(given.every)


def command_line() -> Arguments:
    """Make the parser of the command line."""
    parser = Arguments("release", __doc__)
    parser.add_argument("action", nargs="?", choices=("list", "cancel"), help="what to do instead")
    parser.add_argument(
        "--schedule", required=True, type=reference, help="its database, or env:NAME, or file:/path"
    )
    parser.add_argument("--table", default=_TABLE, help=f"the schedule's table (default: {_TABLE})")
    parser.add_argument("--url", type=reference, help="the broker, or env:NAME, or file:/path")
    parser.add_argument("--queue", help="where messages go that name no queue")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=option,
        metavar="NAME=VALUE",
        help="a further option of the connector, such as redis.laravel=true; may be repeated",
    )
    parser.add_argument(
        "--ahead", type=seconds, default=0.0, metavar="TIME", help="which the broker's own delay takes over"
    )
    parser.add_argument("--limit", type=count, help="most messages to publish")
    parser.add_argument("--every", type=seconds, metavar="TIME", help="continue, so long after each release")
    parser.add_argument("--id", action="append", default=[], help="cancel: a job; may be repeated")
    parser.add_argument("--json", action="store_true", help="list: a JSON object a line")
    return parser


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line; exits with 2 when it is wrong."""
    parser = command_line()
    given = parser.parse_args(arguments)
    if given.action is None and given.url is None:
        parser.error("--url is needed: the broker that the messages go to")
    if (given.action == "cancel") != bool(given.id):
        parser.error("cancel needs the --id of a job, and nothing else takes one")
    if given.limit is not None and given.every is not None:
        parser.error("--limit and --every exclude each other")
    return given


def listed(schedule: exchange.Schedule) -> Iterator[dict[str, Any]]:
    """Return all jobs."""
    return (row for batch in schedule.batches() for row in batch.to_pylist())


def line(row: dict[str, Any]) -> str:
    """Return a job for a person."""
    columns = (row["job_id"], row["state"], row["queue"] or "-", row["job"], row["error"] or row["data"])
    return printable(f"{row['send_at']:%Y-%m-%d %H:%M:%S} {' '.join(columns)}")


def json_line(row: dict[str, Any]) -> str:
    """Return all columns of a job."""
    times = {name: row[name].isoformat() for name in ("send_at", "scheduled_at")}
    return json.dumps({**row, **times}, ensure_ascii=False)


if __name__ == "__main__":
    raise SystemExit(main())
