"""Drain a queue into files or tables: typed per URN, invalid messages to the dead-letter queue.

    babelqueue-spark drain --url redis://localhost:6379/0 --queue orders --output /data/orders \\
        --schema 'urn:babel:orders:created=order_id BIGINT, amount DECIMAL(12,2)'
    spark-submit jobs/drain.py --url env:ORDERS_URL --queue orders --namespace lake.orders --format iceberg \\
        --state s3a://streams/orders
    babelqueue-spark drain --url env:ORDERS_URL --queue orders --output /data/orders --catalog registry.json

It reads what is there, then stops. Run again, it resumes from `--state`: a killed run is repeated without
loss, and without repeats in files and tables.

`--output` writes a folder of files for each URN (Parquet, ORC, JSON), in it a folder `part=…` a batch.
`--namespace` writes a table for each URN into a schema of a catalog (Delta, Iceberg, Parquet). Columns: job,
trace_id, id, queue, lang, created_at, attempts, data (typed, or JSON text without a schema), data_json.

`--catalog`, the SDKs' registry.json or its folder, gives the types. What it does not know, violations and
invalid messages go to a folder or table `others`, not to the dead-letter queue. A changed schema widens its
table, or ends the job.

With `--variant` (Parquet, Delta Lake), `data` without a fixed type is VARIANT instead of JSON text.
`--metrics` tells Prometheus of batches, queues and dead letters.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.catalog.tables import Batches
from babelqueue_spark.catalog.targets import Files, Tables, columns_of
from babelqueue_spark.catalog.variants import VARIANT_FORMATS
from babelqueue_spark.connector.options import read_options, write_options
from babelqueue_spark.jobs.arguments import Arguments, pair, place
from babelqueue_spark.jobs.command import bar, job, new_console, observed, session, show, waiting


@dataclass
class Summary:
    """What a run did.

    Attributes:
        drained: URN → messages written; with a catalog, also `others`.
        dead_lettered: reason → messages sent to the dead-letter queue.
    """

    drained: Counter[str] = field(default_factory=Counter)
    dead_lettered: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.drained.total() + self.dead_lettered.total()


class Drain:
    """One drain as asked for on the command line."""

    def __init__(self, given: argparse.Namespace) -> None:
        output = (given.output or "").rstrip("/")
        self._url, self._queue, self._catalog = given.url, given.queue, given.catalog
        self._variant = given.variant
        self._target = (
            Tables(given.namespace, given.format) if given.namespace else Files(output, given.format)
        )
        self._state = (given.state or f"{output}/_state").rstrip("/")
        self._schemas = dict(given.schema)
        self._read = dict(given.option)
        self.write = {"url": given.url, "deadLetterStyle": given.dead_letter_style}
        self.write |= {name: value for name, value in given.option if name == "broker" or "." in name}
        if given.dead_letter_queue:
            self.write["deadLetterQueue"] = given.dead_letter_queue

    def check(self) -> int:
        """Return the backlog; raise what is wrong with options, catalog or broker before Spark starts."""
        if self._catalog:
            Catalog(self._catalog)
        options = read_options(self._reading())
        write_options(self.write)
        return waiting(options)

    def run(self, spark: SparkSession, progress: Callable[[int], object]) -> Summary:
        """Drain what is in the queue now; `progress(messages)` is called after each batch."""
        found = self.check()
        summary = Summary()
        first = 0
        while True:
            before = summary.total
            self._run_once(spark, summary, progress)
            first = first or summary.total  # on PySpark 4.1 perhaps only the batch that a killed drain left
            if summary.total == before or summary.total - first >= found or not self.check():
                return summary

    def _reading(self) -> dict[str, str]:
        journal = f"{self._state}/journal"
        return {"url": self._url, "queue": self._queue, "journalLocation": journal, **self._read}

    def _run_once(self, spark: SparkSession, summary: Summary, progress: Callable[[int], object]) -> None:
        frame = spark.readStream.format("babelqueue").options(**self._reading()).load()
        typed = Batches(Catalog(self._catalog), frame, self._target, self._variant) if self._catalog else None

        def each(batch: DataFrame, number: int) -> None:
            batch.persist()
            try:
                if typed is None:
                    progress(self._write_batch(batch, f"{str(query.id)[:8]}-{number:06d}", summary))
                else:
                    written = typed.write(batch, number)
                    summary.drained.update(written)
                    progress(sum(written.values()))
            finally:
                batch.unpersist()

        query = (
            frame.writeStream.foreachBatch(each)
            .queryName(f"drain {self._queue}")
            .option("checkpointLocation", f"{self._state}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _write_batch(self, batch: DataFrame, part: str, summary: Summary) -> int:
        counts = batch.groupBy("job", "error").count().collect()
        for urn in sorted({row.job for row in counts if row.error is None}):
            messages = batch.where(F.col("error").isNull() & (F.col("job") == urn))
            name = self._target.name(urn)
            schema = self._schemas.get(urn)
            untyped = F.try_parse_json("data") if self._variant else F.col("data")
            data = F.from_json("data", schema) if schema else untyped
            columns = columns_of(messages, data.alias("data"), F.col("data").alias("data_json"))
            self._target.write(columns, name, part)
        if any(row.error is not None for row in counts):
            self._dead_letter(batch.where(F.col("error").isNotNull()))
        for row in counts:
            if row.error is None:
                summary.drained[row.job] += row["count"]
            else:
                summary.dead_lettered[row.error] += row["count"]
        return sum(row["count"] for row in counts)

    def _dead_letter(self, messages: DataFrame) -> None:
        block = F.struct(F.col("error").alias("reason"), F.lit("refused by the job drain").alias("error"))
        (
            messages.select("body", "queue", "attempts", block.alias("dead_letter"))
            .write.format("babelqueue")
            .options(**self.write)
            .mode("append")
            .save()
        )


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="one queue, or several with commas")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--output", metavar="FOLDER", type=place, help="where each URN gets a folder of files"
    )
    target.add_argument("--namespace", metavar="SCHEMA", help="where each URN gets a table: [catalog.]schema")
    parser.add_argument("--format", default="parquet", help="of the files or tables (default: parquet)")
    parser.add_argument(
        "--state",
        metavar="FOLDER",
        type=place,
        help="of the journal and the checkpoint (default: <output>/_state)",
    )
    parser.add_several("schema", "URN=DDL", "type of the data of a URN", type=pair)
    parser.add_argument(
        "--catalog", metavar="PATH", type=place, help="registry.json, its folder or URL, instead of --schema"
    )
    parser.add_argument(
        "--variant", action="store_true", help="VARIANT for data that has no fixed type, instead of JSON text"
    )
    parser.add_metrics()
    parser.add_argument("--dead-letter-style", choices=["babelqueue", "initphp"], default="babelqueue")
    parser.add_argument("--dead-letter-queue", help="instead of the name that the style gives")
    parser.refuse(
        "--namespace needs --state: the folder of the journal and the checkpoint",
        lambda given: given.namespace and not given.state,
    )
    parser.refuse(
        "--format {format} needs --namespace: a catalog's schema, instead of --output",
        lambda given: given.output and given.format.lower() in ("delta", "iceberg"),
    )
    parser.refuse(
        "--variant is not for --format {format}: take " + " or ".join(VARIANT_FORMATS),
        lambda given: given.variant and given.format.lower() not in VARIANT_FORMATS,
    )
    parser.refuse(
        "--catalog has the schemas, and sends no dead letters: leave the other options out",
        lambda given: given.catalog and (given.schema or given.dead_letter_queue),
    )


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    console = new_console()
    drain = Drain(given)
    found = drain.check()
    console.print(f"{given.queue}: {found:,} messages waiting")
    spark = session(f"drain {given.queue}")
    watched = [{"queue": given.queue, **drain.write}]
    with observed(spark, "drain", given.metrics, watched), bar(console, found) as progress:
        task = progress.add_task(given.queue, total=found)
        summary = drain.run(spark, lambda messages: progress.advance(task, messages))
    rows = [
        *(("drained", urn, messages) for urn, messages in sorted(summary.drained.items())),
        *(("dead letters", reason, messages) for reason, messages in sorted(summary.dead_lettered.items())),
        ("in all", "", summary.total),
    ]
    show(console, ("went to", "which", "messages"), rows)


if __name__ == "__main__":
    raise SystemExit(main())
