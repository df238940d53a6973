"""Show the last messages of a queue, and follow it, without consuming them.

    babelqueue-spark tail --url redis://localhost:6379/0 --queue orders
    babelqueue-spark tail --url env:ORDERS_URL --queue orders,orders.dlq --follow --every 5s
    babelqueue-spark tail --url env:ORDERS_URL --queue orders --lines 1000 --json | jq .data

A line a message: when it was made, its queue, URN, id and attempts, why it is refused or was dead-lettered,
and its data. It runs without Spark, on all brokers but SQS. Each poll reads the whole queue: poll a long one
seldom. On RabbitMQ, and Pulsar without `pulsar.admin_url`, a poll takes messages and returns them: do not
follow there. With `--option catalog=registry.json`, `***` stands for sensitive fields, for messages that the
catalog does not know, and for errors of dead letters. Headers are shown.
"""

import argparse
import json
import sys
from collections import Counter, deque
from datetime import datetime
from time import sleep
from typing import Any

import pyarrow as pa
from rich.text import Text

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.jobs.arguments import Arguments, count
from babelqueue_spark.jobs.command import browsable, job, new_console, printable
from babelqueue_spark.schemas.masking import Mask

Seen = Counter[tuple[str, str]]
"""How often a queue holds a message, by queue and identity."""


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="one queue, or several with commas")
    parser.add_argument("--lines", type=count, default=10, help="most messages at the start (default: 10)")
    parser.add_argument("--follow", action="store_true", help="continue until interrupted")
    parser.add_every()
    parser.add_argument(
        "--json", action="store_true", help="a JSON object a line, with all columns of a read"
    )


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    options = browsable(given)
    console = new_console(soft_wrap=True)
    mask = None if options.catalog is None else Mask(options.catalog, native=options.form.native)
    with options.binding() as binding:
        seen, last = Counter[tuple[str, str]](), given.lines
        while True:
            first = last is not None
            rows, seen = poll(binding, options, seen, last)
            if first and not rows:
                print(f"{given.queue}: no messages", file=sys.stderr)
                for queue in options.queue:
                    if advice := binding.advice(queue):
                        print(f"{queue}: {printable(advice)}", file=sys.stderr)
            for row in rows if mask is None else map(mask.row, rows):
                console.print(json_line(row) if given.json else line(row), markup=False, highlight=False)
            if not given.follow:
                return
            last = None
            sleep(given.every)


def poll(
    binding: BaseBinding, options: Options, seen: Seen, last: int | None
) -> tuple[list[dict[str, Any]], Seen]:
    """Return the rows that are new since the last poll, at most the `last` ones; and what is there now."""
    now: Seen = Counter()
    rows: deque[dict[str, Any]] = deque(maxlen=last)
    for queue in options.queue:
        for deliveries in binding.browse(queue):
            new = []
            for index, identity in enumerate(binding.identities(deliveries)):
                now[queue, identity] += 1
                if now[queue, identity] > seen[queue, identity]:
                    new.append(index)
            taken = deliveries.take(pa.array(new, pa.int64()))
            rows.extend(to_rows(taken, queue, binding, SCHEMA, options).to_pylist())
    return list(rows), now


def line(row: dict[str, Any]) -> Text:
    """Return a message for a person."""
    meta, block = row["meta"] or {}, row["dead_letter"] or {}
    made: datetime | None = meta.get("created_at")
    found = Text(f"{made:%Y-%m-%d %H:%M:%S} " if made else "", "dim")
    found.append(f"{row['queue']} ", "cyan")
    found.append(printable(row["job"] or "(no URN)"), "bold")
    found.append(f" {printable(meta.get('id') or '-')} attempts={row['attempts'] or 0}")
    why = row["error"] or block.get("reason")
    if why:
        found.append(f" {printable(why)}", "red")
    text = row["data"] if row["data"] is not None else row["body"].decode("utf-8", "replace")
    return found.append(f" {printable(text)}")


def json_line(row: dict[str, Any]) -> str:
    """Return all columns of a read; `data` as JSON where it is, `body` as text where it is UTF-8."""
    row = {**row, "headers": dict(row["headers"] or ())}
    row["meta"] = row["meta"] and {**row["meta"], "extra": dict(row["meta"]["extra"] or ())}
    row["body"] = row["body"].decode("utf-8", "backslashreplace")
    return json.dumps(row, default=_text, ensure_ascii=False)


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
