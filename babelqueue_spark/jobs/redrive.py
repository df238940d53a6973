"""Move dead letters back to the queues that they came from, or to another one.

    babelqueue-spark redrive --url redis://localhost:6379/0 --queue orders.dlq --reason failed --dry-run
    spark-submit jobs/redrive.py --url env:ORDERS_URL --queue orders.dlq --urn 'urn:babel:orders:*' \\
        --after '2026-01-01 00:00:00' --limit 1000

Messages lose their dead letter block, and start with no attempts. A killed run may leave some in both
queues, under the same id. Conditions add up; what does not meet them stays, and so do invalid messages.
"""

import argparse
from collections import Counter
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.functions import urn_matches
from babelqueue_spark.jobs.arguments import Arguments, count
from babelqueue_spark.jobs.command import job, new_console, printable, session, show, spinner
from babelqueue_spark.worker import Redriven, redrive


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="the dead-letter queue")
    parser.add_argument("--to", metavar="QUEUE", help="where to (default: each message's original queue)")
    parser.add_several("reason", None, "of these reasons")
    parser.add_several("urn", None, "of these URNs, * for any text")
    parser.add_argument(
        "--after", metavar="TIME", help="failed at or after this time, such as '2026-01-31 12:00'"
    )
    parser.add_argument("--before", metavar="TIME", help="failed before this time")
    parser.add_argument("--where", metavar="SQL", help="a condition on the columns of a read")
    parser.add_argument("--limit", type=count, help="most messages to move")
    parser.add_argument(
        "--poison",
        action="store_true",
        help="also what no reader accepts (for PHP's [] in data: --option allowEmptyListData=true)",
    )
    parser.add_argument(
        "--bypass", action="store_true", help="with the header that asks for no effects outside"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be moved")


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    options = {"url": given.url, **dict(given.option)}
    read_options({**options, "queue": given.queue})
    spark = session(f"redrive {given.queue}")
    console = new_console()
    with spinner(console, f"searching {given.queue}"):
        result = redrive(
            spark,
            options,
            given.queue,
            to=given.to,
            where=condition(given),
            limit=given.limit,
            poison=given.poison,
            bypass=given.bypass,
            dry_run=given.dry_run,
        )
    _report(console, result, dry_run=given.dry_run)


def condition(given: argparse.Namespace) -> Column | None:
    """Return all conditions of the command line as one, or None."""
    failed_at = F.col("dead_letter.failed_at")
    conditions = []
    if given.reason:
        conditions.append(F.col("dead_letter.reason").isin(given.reason))
    if given.urn:
        matches = [urn_matches("job", pattern) for pattern in given.urn]
        conditions.append(reduce(or_, matches))
    if given.after:
        conditions.append(failed_at >= F.lit(given.after).cast("timestamp"))
    if given.before:
        conditions.append(failed_at < F.lit(given.before).cast("timestamp"))
    if given.where:
        conditions.append(F.expr(given.where))
    return reduce(and_, conditions) if conditions else None


def _report(console: Console, result: Redriven, *, dry_run: bool) -> None:
    moved = Counter((move.to, move.reason or "", move.urn or "") for move in result.moves)
    rows = [
        *((*where, messages) for where, messages in sorted(moved.items())),
        *(("(stay)", why, "", messages) for why, messages in sorted(result.kept.items())),
    ]
    show(console, ("would go to" if dry_run else "went to", "reason", "URN", "messages"), rows)
    if dry_run:
        for move in result.moves:
            line = printable(f"{move.id} {move.urn} {move.reason} -> {move.to}")
            console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
