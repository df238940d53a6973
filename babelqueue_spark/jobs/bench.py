"""Measure what a broker, and the way to it, give: messages a second into a queue, and out of it.

    babelqueue-spark bench --url redis://localhost:6379/0
    spark-submit jobs/bench.py --url env:ORDERS_URL --queue bench --messages 1000000 --bytes 4000

It publishes envelopes to a queue of its own, or to an empty one that you name where queues must exist
before, and reads them as a stream that goes nowhere, the first batch apart. What was published leaves the
queue; a topic of Kafka keeps it.
"""

import argparse
import tempfile
import time
import uuid
from contextlib import ExitStack
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.jobs.arguments import Arguments, JobError, count, place
from babelqueue_spark.jobs.command import given_options, job, new_console, session, show, spinner, waiting

_BATCHES = 5
_ENVELOPE_BYTES = 230
"""Of an envelope whose data is empty."""


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="an empty queue (default: a new one)", required=False)
    parser.add_argument("--messages", type=count, default=100_000, metavar="N", help="default: 100000")
    parser.add_argument("--bytes", type=count, default=400, metavar="N", help="of a body (default: 400)")
    parser.add_argument(
        "--state", metavar="FOLDER", type=place, help="of journal and checkpoint (default: a temporary one)"
    )


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    queue = given.queue or f"babelqueue-bench-{uuid.uuid4().hex[:12]}"
    target = {**given_options(given), "queue": queue}
    if given.queue and (found := waiting(read_options(target))):
        raise JobError(f"queue '{queue}' has {found:,} messages, which would be read: name an empty one")
    console = new_console()
    spark = session("bench")
    with ExitStack() as stack:
        state = given.state or stack.enter_context(tempfile.TemporaryDirectory())
        console.print(f"{given.messages:,} messages of about {given.bytes:,} bytes, queue {queue}")
        with spinner(console, "publishing"):
            messages, started = _envelopes(spark, given.messages, given.bytes), time.monotonic()
            messages.write.format("babelqueue").options(**target).mode("append").save()
            seconds = time.monotonic() - started
        lines = [_line("publish", given.messages, seconds)]
        with spinner(console, "reading"):
            progress = read(spark, target, state, given.messages)
    batches = [(each["numInputRows"], each["durationMs"]["triggerExecution"] / 1000) for each in progress]
    lines += [_line("read, first batch", *batches[0])] if batches else []
    if batches[1:]:
        rows, times = zip(*batches[1:], strict=True)
        lines.append(_line("read, further batches", sum(rows), sum(times)))
    show(console, ["what", "messages", "seconds", "a second"], lines)
    arrived = sum(rows for rows, _ in batches)
    if arrived != given.messages:
        raise JobError(f"{given.messages:,} messages were published, and {arrived:,} were read")


def _envelopes(spark: SparkSession, messages: int, size: int) -> DataFrame:
    note = F.lit("x" * max(0, size - _ENVELOPE_BYTES))
    data = F.to_json(F.struct(F.col("id").alias("number"), note.alias("note")))
    return spark.range(messages).select(F.lit("urn:babelqueue:bench").alias("job"), data.alias("data"))


def read(spark: SparkSession, source: dict[str, str], state: str, messages: int) -> list[Any]:
    """Return the progress of the batches of a stream that reads the queue to its end."""
    folder = f"{state.rstrip('/')}/{uuid.uuid4().hex}"
    query = (
        spark.readStream.format("babelqueue")
        .options(journalLocation=f"{folder}/journal", maxMessagesPerTrigger=-(-messages // _BATCHES))
        .options(**source)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    return [each for each in query.recentProgress if each["numInputRows"]]


def _line(what: str, messages: int, seconds: float) -> list[Any]:
    return [what, messages, f"{seconds:.1f}", round(messages / seconds)]


if __name__ == "__main__":
    raise SystemExit(main())
