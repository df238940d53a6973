"""Show queues, dead letters and running queries on a web page of this machine.

    babelqueue-spark serve --url redis://localhost:6379/0 --queue orders,mails
    babelqueue-spark serve --url env:ORDERS_URL --queue orders --metrics http://127.0.0.1:9464/metrics \\
        --journal /mnt/streams/orders/journal --option catalog=registry.json

It prints the address of the page, with the token that it needs. The page shows the backlog of each queue over
time, its dead letters by reason, and batch times of the queries whose metrics or journals are named. It
browses messages, and redrives or drops chosen dead letters after a confirmation.

Data of messages is hidden. With `--option catalog=registry.json` it is shown, with `***` for sensitive fields
and for messages that the catalog does not know. A message's body is shown where somebody asks for that one.
The job listens on 127.0.0.1 only, runs without Spark, and ends when it is interrupted.
"""

import argparse
import errno

from babelqueue_spark.jobs.arguments import Arguments, JobError, place
from babelqueue_spark.jobs.command import given_options, job
from babelqueue_spark.jobs.page.live import Live

PORT = 8642


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="one queue, or several with commas")
    parser.add_argument("--port", type=port, default=PORT, help=f"default: {PORT}; 0 takes a free one")
    parser.add_every()
    parser.add_several("metrics", "URL", "where a query exports its metrics", type=endpoint)
    parser.add_several("journal", "PATH", "the journalLocation of a query", type=place)


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job until it is interrupted."""
    try:
        page = Live(
            given_options(given),
            address=given.url,
            metrics=given.metrics,
            journals=given.journal,
            every=given.every,
            port=given.port,
        )
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise JobError(f"port {given.port} is taken: give another one with --port, or 0 for any") from None
    with page:
        print(page.url, flush=True)
        page.run()


def port(text: str) -> int:
    """Return a number of a port, or 0."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not the number of a port")
    return int(text)


def endpoint(text: str) -> str:
    """Return the URL of metrics, without a secret in it."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"'{text}' is not a URL such as http://127.0.0.1:9464/metrics")
    return place(text)


if __name__ == "__main__":
    raise SystemExit(main())
