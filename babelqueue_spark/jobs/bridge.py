"""Carry messages from a queue of any broker to a queue of any broker.

    babelqueue-spark bridge --from-url redis://localhost:6379/0 --from-queue orders \\
        --to-url env:RABBIT_URL --to-queue orders --state /srv/bridge
    spark-submit jobs/bridge.py --from-url env:OLD --from-queue orders,mails --to-url env:NEW \\
        --state s3a://streams/bridge --every '5 seconds'

Messages keep data, trace_id, meta, attempts, and headers and key where the target has them. Dead letters and
invalid messages arrive in the target's dead-letter queues, byte for byte. A killed run is repeated without
loss, and without repeats on Redis and SQL.

It carries what is there, then stops; with `--every` it continues until it is stopped.
`--metrics` tells Prometheus of batches, and of queues and dead letters on both sides.
"""

import argparse
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BooleanType

from babelqueue_spark.bindings import binding_class
from babelqueue_spark.connector.options import Options, read_options, write_options
from babelqueue_spark.connector.rows.dead_letters import is_dead_letter_queue
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.functions import ColumnFunction, udf
from babelqueue_spark.jobs.arguments import Arguments, place
from babelqueue_spark.jobs.command import bar, job, new_console, observed, session, waiting

_LOOK_SECONDS = 1


def _add_options(parser: Arguments) -> None:
    parser.add_broker("from-", queue="one queue, or several with commas")
    parser.add_broker("to-", queue="where to (default: each to the queue of the same name)", required=False)
    parser.add_argument(
        "--state", metavar="FOLDER", type=place, required=True, help="of the stream's journal and checkpoint"
    )
    parser.add_metrics()
    parser.add_argument("--every", metavar="TIME", help="continue until stopped, with a batch so often")


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    journal = f"{given.state.rstrip('/')}/journal"
    source = {"url": given.from_url, "queue": given.from_queue, "journalLocation": journal}
    source |= dict(given.from_option)
    target = {"url": given.to_url, **dict(given.to_option)}
    found = waiting(read_options(source))
    sink = write_options(target)
    console = new_console()
    console.print(f"{given.from_queue}: {found:,} messages waiting")
    spark = session(f"bridge {given.from_queue}")
    watched = [source, {**target, "queue": given.to_queue or given.from_queue}]
    with (
        observed(spark, "bridge", given.metrics, watched),
        bar(console, None if given.every else found) as progress,
    ):
        query = start(spark, source, target, sink, given)
        task = progress.add_task(given.from_queue, total=None if given.every else found)
        carried = follow(query, lambda messages: progress.update(task, completed=messages))
    console.print(f"carried {carried:,} messages")


def start(
    spark: SparkSession,
    source: dict[str, str],
    target: dict[str, str],
    sink: Options,
    given: argparse.Namespace,
) -> StreamingQuery:
    """Return the query that carries."""
    frame = spark.readStream.format("babelqueue").options(**source).load()
    trigger: dict[str, Any] = {"processingTime": given.every} if given.every else {"availableNow": True}
    return (
        carried_columns(frame, given.to_queue, read_options(source), sink)
        .writeStream.format("babelqueue")
        .queryName(f"bridge {given.from_queue}")
        .options(**target)
        .option("checkpointLocation", f"{given.state.rstrip('/')}/checkpoint")
        .trigger(**trigger)
        .start()
    )


def carried_columns(frame: DataFrame, queue: str | None, source: Options, sink: Options) -> DataFrame:
    """Return what is written of the columns of a read, as far as the target keeps it.

    Dead letters name no queue, so that they go to their own dead-letter queues; a message with a block that
    was read from elsewhere does.
    """
    with sink.binding() as binding:
        can = binding.capabilities
    beside = [*(["headers"] if can.headers else []), *(["delivery.key"] if can.keys else [])]
    dead = _are_dead_letters(source)("queue", "dead_letter.original_queue")
    refused = F.col("error").isNotNull() & ~dead
    nothing = F.from_json(F.lit("{}"), SCHEMA["dead_letter"].dataType.simpleString())
    block = nothing.withField("reason", F.col("error")).withField("error", F.lit("refused by the job bridge"))
    return frame.select(
        "job",
        "trace_id",
        "data",
        "meta",
        "attempts",
        "body",
        F.when(~dead, F.lit(queue) if queue else F.col("queue")).alias("queue"),
        F.when(refused, block).otherwise(F.col("dead_letter")).alias("dead_letter"),
        *beside,
    )


def _are_dead_letters(source: Options) -> ColumnFunction:
    """Return the function that tells whether messages were read from their dead-letter queue."""

    def were(queues: pa.Array, originals: pa.Array) -> pa.Array:
        kind = binding_class(source.broker)
        pairs = zip(queues.to_pylist(), originals.to_pylist(), strict=True)
        found = [
            original is not None and is_dead_letter_queue(queue, original, source, kind)
            for queue, original in pairs
        ]
        return pa.array(found, pa.bool_())

    return udf("are_dead_letters", were, BooleanType())


def follow(query: StreamingQuery, progress: Callable[[int], object]) -> int:
    """Wait for the end of a query; `progress(messages)` hears how many it has carried so far."""
    batches: dict[int, int] = {}
    try:
        while True:
            ended = query.awaitTermination(_LOOK_SECONDS)
            batches |= {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
            progress(sum(batches.values()))
            if ended:
                return sum(batches.values())
    finally:
        query.stop()


if __name__ == "__main__":
    raise SystemExit(main())
