"""Drain a queue into Parquet: typed per URN, invalid messages to the dead-letter queue.

    spark-submit jobs/drain.py --url redis://localhost:6379/0 --queue orders --output /data/orders \\
        --schema 'urn:babel:orders:created=order_id BIGINT, amount DECIMAL(12,2)'

It reads what is in the queue when it starts, then stops. Run again, it goes on from where it stopped:
the checkpoint and the journal lie beside the output, unless they are named. A run that was killed is
repeated without loss and without repeats.

Output: one folder a URN, `<output>/<urn, with _ for what a path should not hold>/part=…`, with the
columns job, trace_id, id, queue, lang, created_at, attempts, data (typed, or JSON text where no schema
is given) and data_json.

Exit codes: 0 all is drained, 1 something failed (one line on standard error says what), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.options import read_options, write_options


@dataclass
class Summary:
    """What a run did.

    Attributes:
        drained: URN → messages written to Parquet.
        dead_lettered: reason → messages sent to the dead-letter queue.
    """

    drained: Counter[str] = field(default_factory=Counter)
    dead_lettered: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All messages of the run."""
        return self.drained.total() + self.dead_lettered.total()


@dataclass(frozen=True)
class Drain:
    """One drain as asked for on the command line.

    Attributes:
        url, queue: where to read.
        output: folder for the Parquet files.
        journal, checkpoint: where the stream keeps its state.
        schemas: URN → DDL of its data.
        read, write: further options of the connector, by its own names.
    """

    url: str
    queue: str
    output: str
    journal: str
    checkpoint: str
    schemas: dict[str, str]
    read: dict[str, str]
    write: dict[str, str]

    def check(self) -> int:
        """The backlog now; raises what is wrong with the options or the broker before Spark starts."""
        options = read_options(
            {"url": self.url, "queue": self.queue, "journalLocation": self.journal, **self.read}
        )
        write_options({"url": self.url, **self.write})
        with options.binding() as binding:
            return sum(binding.backlog(queue) for queue in options.queue)

    def run(self, spark: SparkSession, progress: Any) -> Summary:
        """Drain what is in the queue now; `progress(count)` is called after each batch."""
        waiting = self.check()
        summary = Summary()
        while True:
            before = summary.total
            self._run_once(spark, summary, progress)
            if summary.total == before or summary.total >= waiting:
                return summary

    def _run_once(self, spark: SparkSession, summary: Summary, progress: Any) -> None:
        frame = (
            spark.readStream.format("babelqueue")
            .options(url=self.url, queue=self.queue, journalLocation=self.journal, **self.read)
            .load()
        )

        def each(batch: DataFrame, number: int) -> None:
            batch.persist()
            try:
                progress(self._write_batch(batch, f"{str(query.id)[:8]}-{number:06d}", summary))
            finally:
                batch.unpersist()

        query = (
            frame.writeStream.foreachBatch(each)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _write_batch(self, batch: DataFrame, part: str, summary: Summary) -> int:
        counts = batch.groupBy("job", "error").count().collect()
        for urn in sorted({row.job for row in counts if row.error is None}):
            self._write_urn(batch.where(F.col("error").isNull() & (F.col("job") == urn)), urn, part)
        if any(row.error is not None for row in counts):
            self._dead_letter(batch.where(F.col("error").isNotNull()))
        for row in counts:
            if row.error is None:
                summary.drained[row.job] += row["count"]
            else:
                summary.dead_lettered[row.error] += row["count"]
        return sum(row["count"] for row in counts)

    def _write_urn(self, messages: DataFrame, urn: str, part: str) -> None:
        schema = self.schemas.get(urn)
        messages.select(
            "job",
            "trace_id",
            "meta.id",
            "queue",
            "meta.lang",
            "meta.created_at",
            "attempts",
            (F.from_json("data", schema) if schema else F.col("data")).alias("data"),
            F.col("data").alias("data_json"),
        ).write.mode("overwrite").parquet(f"{self.output}/{folder_of(urn)}/part={part}")

    def _dead_letter(self, messages: DataFrame) -> None:
        block = F.struct(F.col("error").alias("reason"), F.lit("refused by jobs/drain.py").alias("error"))
        (
            messages.select("body", "queue", "attempts", block.alias("dead_letter"))
            .write.format("babelqueue")
            .options(url=self.url, **self.write)
            .mode("append")
            .save()
        )


def folder_of(urn: str) -> str:
    """The folder of a URN: readable, one for each, and within the folder of the output."""
    if re.fullmatch(r"[A-Za-z0-9:-]{1,100}", urn):
        return urn.replace(":", "_")
    readable = re.sub(r"[^A-Za-z0-9-]", "_", urn)[:100]
    return f"{readable}.{hashlib.blake2b(urn.encode(), digest_size=8).hexdigest()}"


def main(arguments: list[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    console = Console()
    try:
        job = parse(arguments)
        waiting = job.check()
        console.print(f"{job.queue}: {waiting:,} messages waiting")
        spark = (
            SparkSession.builder.appName(f"drain {job.queue}")
            .config("spark.sql.shuffle.partitions", "4")  # its one shuffle counts messages by URN
            .getOrCreate()
        )
        with bar(console, waiting) as progress:
            task = progress.add_task(job.queue, total=waiting)
            summary = job.run(spark, lambda count: progress.advance(task, count))
    except (BabelQueueError, PySparkException) as error:
        print(f"drain: {reason_of(error)}", file=sys.stderr)
        return 1
    show(console, summary)
    return 0


def parse(arguments: list[str] | None) -> Drain:
    """The command line; exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="drain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True, help="the broker, or env:NAME, or file:/path")
    parser.add_argument("--queue", required=True, help="one queue, or several with commas")
    parser.add_argument("--output", required=True, help="folder for the Parquet files")
    parser.add_argument("--journal", help="the stream's journal (default: <output>/_journal)")
    parser.add_argument("--checkpoint", help="the stream's checkpoint (default: <output>/_checkpoint)")
    parser.add_argument(
        "--schema",
        action="append",
        default=[],
        type=pair,
        metavar="URN=DDL",
        help="type of the data of a URN; may be repeated",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="a further option of the read, such as maxMessagesPerTrigger=10000; may be repeated",
    )
    parser.add_argument("--dead-letter-style", choices=["babelqueue", "initphp"], default="babelqueue")
    parser.add_argument("--dead-letter-queue", help="instead of the name that the style gives")
    given = parser.parse_args(arguments)
    write = {"deadLetterStyle": given.dead_letter_style}
    if given.dead_letter_queue:
        write["deadLetterQueue"] = given.dead_letter_queue
    read = dict(given.option)
    write |= {name: value for name, value in read.items() if name == "broker" or "." in name}
    return Drain(
        url=given.url,
        queue=given.queue,
        output=given.output.rstrip("/"),
        journal=given.journal or f"{given.output.rstrip('/')}/_journal",
        checkpoint=given.checkpoint or f"{given.output.rstrip('/')}/_checkpoint",
        schemas=dict(given.schema),
        read=read,
        write=write,
    )


def pair(text: str) -> tuple[str, str]:
    """`NAME=VALUE` split at the first `=`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name.strip(), value.strip()


def bar(console: Console, waiting: int) -> Progress:
    """A progress bar; silent where the output is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal or not waiting,
    )


def show(console: Console, summary: Summary) -> None:
    """A table of what went where."""
    table = Table("went to", "which", "messages")
    for urn, count in sorted(summary.drained.items()):
        table.add_row("Parquet", urn, f"{count:,}")
    for reason, count in sorted(summary.dead_lettered.items()):
        table.add_row("dead letters", reason, f"{count:,}")
    table.add_row("in all", "", f"{summary.total:,}")
    console.print(table)


def reason_of(error: Exception) -> str:
    """The connector's own line out of what Spark wraps around it."""
    text = str(error)
    own = re.findall(r"babelqueue_spark\.errors\.\w+: (.+)", text)
    return own[-1] if own else next(iter(text.splitlines()), type(error).__name__)


if __name__ == "__main__":
    sys.exit(main())
