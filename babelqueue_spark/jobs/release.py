"""Publish the messages of a schedule that are due; list what waits, cancel jobs.

    babelqueue-spark release --schedule sqlite:////srv/schedule.db --url redis://localhost:6379/0 --every 1s
    babelqueue-spark release --schedule env:SCHEDULE_URL --url env:ORDERS_URL --queue orders --ahead 30s
    babelqueue-spark release list --schedule env:SCHEDULE_URL --json | jq .send_at
    babelqueue-spark release cancel --schedule env:SCHEDULE_URL --id publish-42 --id expire-42

It publishes what is due, then stops. With `--every` it continues, and passes over a broker or a database that
is away. Several may run at once. A killed run is repeated without loss, and without
repeats on Redis, SQL and Kafka. `list` shows jobs as first scheduled; `cancel` says how many still waited. It
runs without Spark.
"""

import argparse
import json
import logging
from typing import Any

from babelqueue_spark import exchange
from babelqueue_spark.bindings.options import seconds
from babelqueue_spark.jobs.arguments import Arguments, count
from babelqueue_spark.jobs.command import given_options, job, new_console, printable, repeat


def _add_options(parser: Arguments) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "cancel"), help="what to do instead")
    parser.add_database("schedule", table="babelqueue_schedule")
    parser.add_broker(queue="where messages go that name no queue", required=False, url_required=False)
    parser.add_argument(
        "--ahead", type=seconds, default=0.0, metavar="TIME", help="which the broker's own delay takes over"
    )
    parser.add_argument("--limit", type=count, help="most messages to publish")
    parser.add_argument("--every", type=seconds, metavar="TIME", help="continue, so long after each release")
    parser.add_several("id", None, "cancel: a job")
    parser.add_argument("--json", action="store_true", help="list: a JSON object a line")
    parser.refuse(
        "--url is needed: the broker that the messages go to",
        lambda given: given.action is None and given.url is None,
    )
    parser.refuse(
        "cancel needs the --id of a job, and nothing else takes one",
        lambda given: (given.action == "cancel") != bool(given.id),
    )
    parser.refuse(
        "--limit and --every exclude each other",
        lambda given: given.limit is not None and given.every is not None,
    )


@job(_add_options)
def main(given: argparse.Namespace) -> int:
    """Run the job; returns the exit code."""
    logging.basicConfig(format="release: %(message)s")
    schedule = exchange.Schedule(given.schedule, table=given.table)
    console = new_console(soft_wrap=True)
    if given.action == "list":
        for batch in schedule.batches():
            for row in batch.to_pylist():
                console.print(json_line(row) if given.json else line(row), markup=False, highlight=False)
        return 0
    if given.action == "cancel":
        console.print(f"cancelled {schedule.cancel(given.id)} of {len({*given.id})} jobs")
        return 0
    options = given_options(given)
    return repeat(
        "release",
        "released",
        given.every,
        lambda: schedule.release(options, limit=given.limit, ahead=given.ahead),
    )


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
