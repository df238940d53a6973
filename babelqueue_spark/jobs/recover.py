"""Return what dead readers had claimed from Redis to its queue, where no reader is left to do it.

    babelqueue-spark recover --url redis://localhost:6379/0 --queue orders

A query returns lapsed claims by itself. Run this where only other consumers still read the queue, once
`visibilityTimeout` is over. Messages go to the tail of their queue, unchanged. With `--option
redis.reclaim_idle=600`, messages without a deadline (InitPHP writes none) return too, in a second run 600 s
after a first one. It runs without Spark.
"""

import argparse

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.jobs.arguments import Arguments
from babelqueue_spark.jobs.command import given_options, job, new_console, printable


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="one queue, or several with commas")


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    options = read_options(given_options(given))
    if options.broker != "redis":
        raise OptionError(f"broker '{options.broker}' returns lapsed claims by itself: run no job for it")
    from babelqueue_spark.bindings.redis import RedisBinding

    console = new_console(soft_wrap=True)
    with options.binding() as binding:
        assert isinstance(binding, RedisBinding)
        for queue in options.queue:
            line = f"{printable(queue)}: {binding.recover(queue)} messages returned"
            if unowned := binding.unowned(queue):
                line += f", {unowned} in flight without a deadline"
            console.print(line, markup=False, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
