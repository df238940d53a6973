"""Publish JSON lines, files or a table to a queue.

    babelqueue-spark publish --url redis://localhost:6379/0 --queue orders --input orders.jsonl --dry-run
    babelqueue-spark publish --url env:ORDERS_URL --queue orders --input orders.jsonl.gz --start-line 40001
    spark-submit jobs/publish.py --url env:ORDERS_URL --queue orders --input /lake/orders --format parquet
    spark-submit jobs/publish.py --url env:ORDERS_URL --queue orders --table lake.shop.orders

A JSON line is an envelope; `{"job": "urn:babel:orders:created", "data": {"order_id": 1}}` is enough. Lines
are published in order. A failure names the line to resume with; some after it may be on the queue already.
The file may be compressed (gz, bz2, zst, lz4), on a disk or at `s3://…`, `gs://…`.

With `--format` (any that Spark reads) or `--table`, rows have the columns of a write, without their order. An
invalid message ends the job before it is published; `--skip-invalid` passes over it.
"""

import argparse
import io
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem, LocalFileSystem
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType
from rich.console import Console

from babelqueue_spark import functions as bq
from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.connector import publishing
from babelqueue_spark.connector.message_log import MessageLog, message_log
from babelqueue_spark.connector.options import envelope_options, write_options
from babelqueue_spark.envelope import Reason, decode, validate
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.jobs.arguments import Arguments, JobError, count, place
from babelqueue_spark.jobs.command import bar, given_options, job, new_console, session, show, spinner

_LINES = "json lines"
_CHUNK = 10_000
_COMPLETED = pa.array([Reason.MISSING_META, Reason.MISSING_TRACE_ID, Reason.INVALID_ATTEMPTS], pa.string())


@dataclass
class Summary:
    """What a run did, or would do.

    Attributes:
        published: URN → messages.
        skipped: reason → lines or rows that no reader would accept.
        samples: the first of these lines, as `(line, reason)`.
    """

    published: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, str]] = field(default_factory=list)


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="where to publish")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input", metavar="PATH", type=place, help="a file of JSON lines, or files of --format"
    )
    source.add_argument("--table", metavar="NAME", help="a table or view: [[catalog.]schema.]table")
    parser.add_argument(
        "--format", default=_LINES, help="of the files, such as parquet (default: JSON lines)"
    )
    parser.add_argument("--start-line", type=count, default=1, help="of JSON lines, from 1")
    parser.add_argument("--end-line", type=count, help="of JSON lines, itself included")
    parser.add_argument("--skip-invalid", action="store_true", help="pass over what no reader would accept")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be published")
    parser.refuse(
        "--start-line and --end-line are of JSON lines",
        lambda given: (given.start_line > 1 or given.end_line) and (given.table or given.format != _LINES),
    )


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    console = new_console()
    summary = Summary()
    if given.format == _LINES and given.input:
        with bar(console, None) as progress:
            task = progress.add_task(given.queue, total=None)
            publish_lines(given, summary, lambda lines: progress.advance(task, lines))
    else:
        publish_rows(given, summary, console)
    rows = [
        *(
            ("valid" if given.dry_run else "published", urn, n)
            for urn, n in sorted(summary.published.items())
        ),
        *(("not valid", reason, n) for reason, n in sorted(summary.skipped.items())),
    ]
    show(console, ("what", "URN or reason", "messages"), rows)
    for line, reason in summary.samples:
        console.print(f"line {line}: {reason}")
    if given.dry_run and summary.skipped and not given.skip_invalid:
        raise JobError(f"{summary.skipped.total():,} are not valid: correct them, or use --skip-invalid")


# -- JSON lines --------------------------------------------------------------------------------------


def publish_lines(given: argparse.Namespace, summary: Summary, progress: Callable[[int], object]) -> None:
    """Publish a file in its order, from this process; `progress(lines)` is called for each chunk."""
    options = envelope_options(given_options(given), "a file of lines")
    name = f"published-{uuid.uuid4().hex}"
    with (
        options.binding() as binding,
        message_log(options.message_log, name, binding, options.catalog) as log,
    ):
        size = min(_CHUNK, binding.capabilities.publish_batch)
        for first, lines in _chunks(given.input, given.start_line, given.end_line, size):
            bodies, reasons = completed(pa.array(lines, pa.binary()), given.queue)
            blank = pa.array([not line.strip() for line in lines])
            refused = pc.and_not(pc.is_valid(reasons), blank)
            _note(summary, first, reasons, refused)
            if not (given.dry_run or given.skip_invalid) and pc.any(refused).as_py():
                line, reason = summary.samples[0]
                published = _published_before(first, given.start_line)
                raise JobError(f"line {line}: {reason}; {published}; correct it, or use --skip-invalid")
            good = bodies.filter(pc.is_null(reasons))
            if not given.dry_run:
                _publish(binding, given.queue, good, log, first, given.start_line)
            summary.published.update(decode(good).column("job").to_pylist())
            progress(len(lines))


def completed(lines: pa.BinaryArray, queue: str) -> tuple[pa.BinaryArray, pa.StringArray]:
    """Lines as bodies, with the parts of an envelope that they leave out; why a body is refused, or null."""
    columns = decode(lines)
    reasons = columns.column("error")
    bodies = lines.to_pylist()
    for row in pc.indices_nonzero(pc.is_in(reasons, _COMPLETED)).to_pylist():
        missing = [
            name for name in ("trace_id", "meta", "attempts") if not columns.column(name)[row].is_valid
        ]
        parts = b"".join(b'"%s":%s,' % (name.encode(), _part(name, queue)) for name in missing)
        bodies[row] = b"{" + parts + bodies[row].lstrip()[1:]
    whole = pa.array(bodies, pa.binary())
    refused = pc.is_valid(validate(whole))
    return whole, pc.if_else(refused, reasons, pa.scalar(None, pa.string()))


def _part(name: str, queue: str) -> bytes:
    meta = {
        "id": str(uuid.uuid4()),
        "queue": queue,
        "lang": "python",
        "schema_version": 1,
        "created_at": time.time_ns() // 1_000_000,
    }
    parts = {"trace_id": str(uuid.uuid4()), "meta": meta, "attempts": 0}
    return msgspec.json.encode(parts[name])


def _chunks(path: str, first: int, last: int | None, size: int) -> Iterator[tuple[int, list[bytes]]]:
    """Lines `first` to `last` in chunks of `size`, each with the number of its first line."""
    now = first
    try:
        with _opened(path) as file:
            lines = (line.rstrip(b"\r\n") for line in islice(file, first - 1, last))
            while chunk := list(islice(lines, size)):
                yield now, chunk
                now += len(chunk)
    except (OSError, pa.ArrowException) as error:
        raise JobError(f"{path} cannot be read: {error}; {_published_before(now, first)}") from None


def _opened(path: str) -> BinaryIO:
    system, name = FileSystem.from_uri(path) if "://" in path else (LocalFileSystem(), path)
    return io.BufferedReader(system.open_input_stream(name, compression="detect"))


def _note(summary: Summary, first: int, reasons: pa.StringArray, refused: pa.BooleanArray) -> None:
    rows = pc.indices_nonzero(refused).to_pylist()
    summary.skipped.update(reasons[row].as_py() for row in rows)
    room = 10 - len(summary.samples)
    summary.samples += [(first + row, reasons[row].as_py()) for row in rows[:room]]


def _publish(
    binding: BaseBinding, queue: str, bodies: pa.BinaryArray, log: MessageLog, first: int, start: int
) -> None:
    try:
        publishing.publish(binding, queue, outgoing(len(bodies), body=bodies), lines=log)
    except BabelQueueError as error:
        resume = f": resume with --start-line {first}" if first > start else ""
        raise JobError(f"{error}; some lines from {first} on may be published{resume}") from None


def _published_before(first: int, start: int) -> str:
    """Return what is on the queue when a run that began at line `start` ends at line `first`."""
    if first == start:
        return "nothing is published"
    return f"nothing is published from line {first} on: resume with --start-line {first}"


# -- rows --------------------------------------------------------------------------------------------


def publish_rows(given: argparse.Namespace, summary: Summary, console: Console) -> None:
    """Publish a table or files of Spark's."""
    options = given_options(given)
    write_options(options)
    spark = session(f"publish {given.queue}")
    frame = spark.table(given.table) if given.table else spark.read.format(given.format).load(given.input)
    reason = reason_column(frame)
    with spinner(console, "checking the rows"):
        counts = (
            frame.groupBy(F.coalesce(*_jobs(frame)).alias("job"), reason.alias("reason")).count().collect()
        )
    for row in counts:
        if row.reason is None:
            summary.published[row.job] += row["count"]
        else:
            summary.skipped[row.reason] += row["count"]
    if given.dry_run:
        return
    if summary.skipped and not given.skip_invalid:
        reasons = ", ".join(f"{n:,} rows {reason}" for reason, n in sorted(summary.skipped.items()))
        raise JobError(f"{reasons}; nothing is published: correct them, or use --skip-invalid")
    good = frame.where(reason.isNull())
    with spinner(console, f"publishing {summary.published.total():,} rows"):
        good.write.format("babelqueue").options(**options).mode("append").save()


def reason_column(frame: DataFrame) -> Column:
    """Why a row cannot be an envelope, by its URN and its data; null = it can."""
    jobs = _jobs(frame)
    if not jobs or "data" not in frame.columns:
        raise JobError(f"rows need the columns job (or urn) and data, but have {', '.join(frame.columns)}")
    text = isinstance(frame.schema["data"].dataType, StringType)
    data = F.trim("data") if text else F.to_json("data")
    head = F.to_json(F.struct(F.coalesce(*jobs, F.lit("")).alias("job"), F.lit("t").alias("trace_id")))
    meta = '{"id":"i","queue":"q","lang":"python","schema_version":1,"created_at":0}'
    body = F.concat(
        F.regexp_replace(head, "}$", ","),
        F.lit('"attempts":0,"meta":' + meta + ',"data":'),
        F.coalesce(data, F.lit("null")),
        F.lit("}"),
    )
    envelope = bq.decode(body)
    other = F.when(~envelope["data"].eqNullSafe(data), F.lit(Reason.INVALID_DATA))
    return F.coalesce(envelope["error"], other)


def _jobs(frame: DataFrame) -> list[Column]:
    return [F.col(name) for name in ("job", "urn") if name in frame.columns]


if __name__ == "__main__":
    raise SystemExit(main())
