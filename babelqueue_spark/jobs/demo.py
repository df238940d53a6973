"""Envelopes leave a queue, arrive as typed rows, land as Parquet; bad ones as dead letters.

    babelqueue-spark demo
    spark-submit jobs/demo.py --folder /tmp/demo

It fills a SQLite queue with 50,000 envelopes of three URNs and every kind of bad message, drains it,
publishes more, drains again, and checks that every message is somewhere exactly once. It replaces the folder.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.catalog.targets import folder_of
from babelqueue_spark.connector.options import write_options
from babelqueue_spark.jobs import drain
from babelqueue_spark.jobs.arguments import Arguments, JobError
from babelqueue_spark.jobs.command import job, run_here

QUEUE = "shop"
ENVELOPES = 50_000
LATER = 5_000

SCHEMAS = {
    "urn:babel:orders:created": "order_id BIGINT, amount DECIMAL(12,2), placed_at TIMESTAMP",
    "urn:babel:users:registered": "user_id BIGINT, email STRING",
    "urn:babel:catalog:item.indexed": "sku STRING, tags ARRAY<STRING>",
}

GOOD = (
    '{"job":"urn:x","trace_id":"t","data":{},"meta":{"id":"i","queue":"shop","lang":"php","schema_version":1,'
)
GOOD += '"created_at":1},"attempts":0}'
BAD: dict[str, bytes] = {
    "no URN": GOOD.replace("urn:x", "").encode(),
    "no meta": b'{"job":"urn:x","trace_id":"t","data":{},"attempts":0}',
    "a newer schema version": GOOD.replace('"schema_version":1', '"schema_version":2').encode(),
    "no data": GOOD.replace('"data":{},', "").encode(),
    "no trace id": GOOD.replace('"trace_id":"t",', "").encode(),
    "no attempts": GOOD.replace(',"attempts":0', "").encode(),
    "attempts as text": GOOD.replace('"attempts":0', '"attempts":"0"').encode(),
    "data that is a list": GOOD.replace('"data":{}', '"data":[1,2]').encode(),
    "cut off in the middle": GOOD.encode()[:60],
    "not JSON": b"hello",
    "nothing at all": b"",
    "not UTF-8": b'{"job":"\xff"}',
    "a byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "five thousand brackets": b'{"job":"urn:x","data":' + b"[" * 5000,
}


def _clear(folder: Path) -> None:
    """Create the folder again; leave one alone that no demo has written to."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "queue.db").exists():
        raise JobError(f"{folder} holds something that no demo wrote: name another --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _add_options(parser: Arguments) -> None:
    parser.add_argument(
        "--folder", metavar="FOLDER", default="build/demo", help="of queue and output (default: build/demo)"
    )


@job(_add_options)
def main(given: argparse.Namespace) -> int:
    """Run the demo; 0 when the sum is right."""
    folder = Path(given.folder).absolute()
    _clear(folder)
    url = f"sqlite:///{folder}/queue.db"
    spark = session()
    _say(f"1. Publish {ENVELOPES:,} envelopes of {len(SCHEMAS)} URNs and {len(BAD)} bad messages")
    publish(_envelopes(spark, 0, ENVELOPES), url)
    publish_bad(url)
    _say("2. Drain the queue into Parquet with the job drain")
    codes = [run_drain(url, folder)]
    _say(f"3. {LATER:,} more arrive; drain again, from the same checkpoint")
    publish(_envelopes(spark, ENVELOPES, ENVELOPES + LATER), url)
    codes.append(run_drain(url, folder))
    _say("4. What is where")
    right = report(spark, url, folder) and codes == [0, 0]
    spark.stop()
    return 0 if right else 1


def _say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def session() -> SparkSession:
    """Spark on this machine."""
    run_here()
    return (
        SparkSession.builder.master("local[2,4]")
        .appName("babelqueue-spark demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def _envelopes(spark: SparkSession, first: int, end: int) -> DataFrame:
    number = F.col("id")
    order = F.struct(
        number.alias("order_id"),
        F.format_string("%d.%02d", number % 900, number % 100).alias("amount"),
        F.date_format(F.timestamp_seconds(1_790_000_000 + number), "yyyy-MM-dd'T'HH:mm:ss'Z'").alias(
            "placed_at"
        ),
    )
    user = F.struct(
        number.alias("user_id"), F.concat(F.lit("user"), number, F.lit("@example.org")).alias("email")
    )
    item = F.struct(
        F.concat(F.lit("SKU-"), number).alias("sku"), F.array(F.lit("new"), F.lit("größe")).alias("tags")
    )
    names = F.array(*(F.lit(urn) for urn in SCHEMAS))
    return spark.range(first, end, numPartitions=2).select(
        F.element_at(names, (number % 3 + 1).cast("int")).alias("job"),
        F.when(number % 3 == 0, F.to_json(order))
        .when(number % 3 == 1, F.to_json(user))
        .otherwise(F.to_json(item))
        .alias("data"),
    )


def publish(messages: DataFrame, url: str) -> None:
    """Write a DataFrame to the queue."""
    started = time.monotonic()
    messages.write.format("babelqueue").options(url=url, queue=QUEUE).mode("append").save()
    print(f"published in {time.monotonic() - started:.1f} s")


def publish_bad(url: str) -> None:
    """Put bytes on the queue that no producer should."""
    with write_options({"url": url}).binding() as binding:
        binding.publish(QUEUE, outgoing(len(BAD), body=list(BAD.values())))


def run_drain(url: str, folder: Path) -> int:
    """Return the drain job as spark-submit would run it."""
    schemas = [part for urn, ddl in SCHEMAS.items() for part in ("--schema", f"{urn}={ddl}")]
    return drain.main(["--url", url, "--queue", QUEUE, "--output", str(folder / "lake"), *schemas])


def report(spark: SparkSession, url: str, folder: Path) -> bool:
    """Print what landed where; whether it adds up."""
    landed = 0
    for urn in SCHEMAS:
        table = spark.read.parquet(str(folder / "lake" / folder_of(urn)))
        rows, ids = table.count(), table.select("id").distinct().count()
        landed += ids
        print(f"{urn}: {rows:,} rows, {ids:,} different ids")
        table.select("job", "data.*", "created_at").orderBy("id").show(2, truncate=False)
        if rows != ids:
            print("some rows are there twice")
    dead = spark.read.format("babelqueue").options(url=url, queue=f"{QUEUE}.dlq").load()
    print("dead letters, by reason:")
    dead.groupBy("dead_letter.reason").count().orderBy("reason").show(truncate=False)
    left = spark.read.format("babelqueue").options(url=url, queue=QUEUE).load().count()
    dead_count, published = dead.count(), ENVELOPES + LATER + len(BAD)
    right = landed + dead_count == published and dead_count == len(BAD) and left == 0
    print(
        f"published {published:,} = {landed:,} in Parquet + {dead_count} dead letters "
        f"+ {left} left in the queue: " + ("the sum is right" if right else "THE SUM IS WRONG")
    )
    return right


if __name__ == "__main__":
    raise SystemExit(main())
