"""Publish the rows of a transactional outbox to a broker, and mark them as published.

    babelqueue-spark relay --outbox env:SHOP_URL --url redis://localhost:6379/0 --every 1s
    babelqueue-spark relay --outbox sqlite:////srv/shop.db --table outbox --url env:ORDERS_URL --once

A row goes to the queue that it names, or to `--queue`; bodies stay as they are. `--once` publishes what is
there, then stops. With `--every` it continues, and passes over a broker or a database that is away. Several
may run at once; the order of a queue's rows stays. A killed run is repeated without loss, and without repeats
on Redis, SQL and Kafka. It runs without Spark.
"""

import argparse
import logging

from babelqueue_spark import exchange
from babelqueue_spark.bindings.options import seconds
from babelqueue_spark.jobs.arguments import Arguments
from babelqueue_spark.jobs.command import given_options, job, repeat


def _add_options(parser: Arguments) -> None:
    parser.add_database("outbox", table="outbox")
    parser.add_argument(
        "--lease",
        type=seconds,
        default=90.0,
        metavar="TIME",
        help="after which another takes over what a relay had claimed that died (default: 90s)",
    )
    parser.add_broker(queue="where all messages go, instead of the queues that rows name", required=False)
    often = parser.add_mutually_exclusive_group(required=True)
    often.add_argument("--once", action="store_true", help="publish what is there, then stop")
    often.add_argument("--every", type=seconds, metavar="TIME", help="continue, so long after each pass")


@job(_add_options)
def main(given: argparse.Namespace) -> int:
    """Run the job; returns the exit code."""
    logging.basicConfig(format="relay: %(message)s")
    outbox = exchange.Outbox(given.outbox, given.table, given.lease)
    return repeat("relay", "relayed", given.every, lambda: outbox.relay(given_options(given)))


if __name__ == "__main__":
    raise SystemExit(main())
