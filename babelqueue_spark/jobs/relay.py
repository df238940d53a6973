"""Publish the rows of a transactional outbox to a broker, and mark them as published.

    babelqueue-spark relay --outbox env:SHOP_URL --url redis://localhost:6379/0 --every 1s
    babelqueue-spark relay --outbox sqlite:////srv/shop.db --table outbox --url env:ORDERS_URL --once

A row goes to the queue that it names, or to `--queue`. Bodies stay as they are. `--once` publishes what is
there, then stops. With `--every` it continues until it is interrupted, and passes over a broker or a database
that is away. Several may run at once; the order of a queue's rows stays. A run that was killed is repeated
without loss, and without repeats where the broker is Redis, SQL or Kafka. What the broker refuses stays
pending with its error; the others are sent. It runs without Spark.
"""

from __future__ import annotations

import logging
import sys
from time import sleep

from babelqueue_spark import exchange
from babelqueue_spark.bindings.options import seconds
from babelqueue_spark.errors import BrokerFullError, BrokerUnreachableError, QueuesFailedError
from babelqueue_spark.jobs.command import Arguments, job, new_console, option, reference


@job
def main(arguments: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    given = command_line().parse_args(arguments)
    logging.basicConfig(format="relay: %(message)s")
    outbox = exchange.Outbox(given.outbox, given.table, given.lease)
    console = new_console(soft_wrap=True)
    options = {"url": given.url, **dict(given.option)}
    if given.queue:
        options["queue"] = given.queue
    while True:
        try:
            relayed = outbox.relay(options)
        except (BrokerUnreachableError, BrokerFullError, QueuesFailedError) as error:
            if given.once:
                raise
            print(f"relay: {error}", file=sys.stderr)
        else:
            if given.once or relayed.messages or relayed.failed:
                console.print(f"relayed {relayed.messages:,} messages, {relayed.failed:,} failed")
            if given.once:
                return 1 if relayed.failed else 0
        sleep(given.every)


def command_line() -> Arguments:
    """Make the parser of the command line."""
    parser = Arguments("relay", __doc__)
    parser.add_argument(
        "--outbox", required=True, type=reference, help="its database, or env:NAME, or file:/path"
    )
    parser.add_argument("--table", default="outbox", help="the outbox's table (default: outbox)")
    parser.add_argument(
        "--lease",
        type=seconds,
        default=90.0,
        metavar="TIME",
        help="after which another takes over what a relay had claimed that died (default: 90s)",
    )
    parser.add_argument("--url", required=True, type=reference, help="the broker, or env:NAME, or file:/path")
    parser.add_argument("--queue", help="where all messages go, instead of the queues that rows name")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=option,
        metavar="NAME=VALUE",
        help="a further option of the broker, such as redis.laravel=true; may be repeated",
    )
    often = parser.add_mutually_exclusive_group(required=True)
    often.add_argument("--once", action="store_true", help="publish what is there, then stop")
    often.add_argument("--every", type=seconds, metavar="TIME", help="continue, so long after each pass")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
