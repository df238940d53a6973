"""What is in a dead-letter queue, and why: counts by reason, URN and hour, and samples.

    babelqueue-spark dead-letters --url redis://localhost:6379/0 --queue orders.dlq
    spark-submit jobs/dead_letters.py --url env:ORDERS_URL --queue orders.dlq --html report.html

It consumes nothing; SQS cannot be read so. `--html` writes a page with pictures, `--json` the numbers.
Samples hold data of messages. With `--option catalog=registry.json`, `***` stands for sensitive fields, for
messages that the catalog does not know, and for errors.
"""

import argparse
import io
import json
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console

from babelqueue_spark.catalog.catalog import mask
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.jobs.arguments import Arguments, count
from babelqueue_spark.jobs.command import given_options, job, new_console, session, show, spinner, waiting

_TOP = 20


@dataclass(frozen=True)
class Report:
    """What a dead-letter queue holds.

    Attributes:
        queue: its name.
        at: when it was read, ISO 8601.
        total: messages.
        by_reason, by_job, by_original_queue: name → messages, most first; the last one sums up the rest.
        by_hour: hour of failure (`2026-01-31 12:00`, UTC) → reason → messages, in order of time.
        samples: the latest of each reason: reason, error, job, id, trace_id, attempts, failed_at, data.
    """

    queue: str
    at: str
    total: int
    by_reason: dict[str, int]
    by_job: dict[str, int]
    by_original_queue: dict[str, int]
    by_hour: dict[str, dict[str, int]]
    samples: list[dict[str, Any]]


def _add_options(parser: Arguments) -> None:
    parser.add_broker(queue="the dead-letter queue, or several with commas")
    parser.add_argument("--html", metavar="FILE", help="write a page instead of a table")
    parser.add_argument("--json", metavar="FILE", help="write JSON instead of a table")
    parser.add_argument("--samples", type=count, default=3, help="of each reason (default: 3)")


@job(_add_options)
def main(given: argparse.Namespace) -> None:
    """Run the job."""
    options = given_options(given)
    console = new_console()
    found = waiting(read_options(options))
    with spinner(console, f"reading {found:,} messages"):
        report = examine(session(f"dead letters of {given.queue}"), options, given.samples)
    for target, text in ((given.json, as_json), (given.html, as_html)):
        if target:
            Path(target).write_text(text(report), encoding="utf-8")
    if not (given.json or given.html):
        _print(console, report)


def examine(spark: SparkSession, options: dict[str, str], samples: int) -> Report:
    """Read the queue once, and count."""
    catalog = read_options(options).catalog
    read = spark.read.format("babelqueue").options(**options).load()
    letters = (
        (read if catalog is None else mask(read, catalog))
        .select(
            F.coalesce("dead_letter.reason", "error", F.lit("(none)")).alias("reason"),
            F.coalesce("job", F.lit("(no URN)")).alias("job"),
            F.coalesce("dead_letter.original_queue", F.lit("(unknown)")).alias("original_queue"),
            F.col("dead_letter.failed_at").alias("failed_at"),
            "dead_letter.error",
            "attempts",
            "meta.id",
            "trace_id",
            F.substring(F.coalesce("data", F.col("body").cast("string")), 1, 500).alias("data"),
        )
        .persist()
    )
    try:
        return Report(
            queue=options["queue"],
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            total=letters.count(),
            by_reason=_counts(letters, "reason"),
            by_job=_counts(letters, "job"),
            by_original_queue=_counts(letters, "original_queue"),
            by_hour=_hours(letters),
            samples=_samples(letters, samples),
        )
    finally:
        letters.unpersist()


def _counts(letters: DataFrame, column: str) -> dict[str, int]:
    rows = letters.groupBy(column).count().orderBy(F.desc("count"), column).collect()
    counts = {row[column]: row["count"] for row in rows[:_TOP]}
    rest = sum(row["count"] for row in rows[_TOP:])
    return counts | ({f"({len(rows) - _TOP} others)": rest} if rest else {})


def _hours(letters: DataFrame) -> dict[str, dict[str, int]]:
    hour = F.date_format(F.to_utc_timestamp("failed_at", F.current_timezone()), "yyyy-MM-dd HH:00")
    rows = (
        letters.where("failed_at IS NOT NULL")
        .groupBy(hour.alias("hour"), "reason")
        .count()
        .orderBy("hour", "reason")
        .collect()
    )
    hours: dict[str, dict[str, int]] = {row["hour"]: {} for row in rows}
    for row in rows:
        hours[row["hour"]][row["reason"]] = row["count"]
    return hours


def _samples(letters: DataFrame, each: int) -> list[dict[str, Any]]:
    latest = Window.partitionBy("reason").orderBy(F.desc_nulls_last("failed_at"), "id")
    chosen = letters.withColumn("rank", F.row_number().over(latest)).where(F.col("rank") <= each)
    failed_at = F.date_format("failed_at", "yyyy-MM-dd'T'HH:mm:ssXXX")
    rows = chosen.withColumn("failed_at", failed_at).orderBy("reason", "rank").drop("rank").collect()
    return [row.asDict() for row in rows]


def _print(console: Console, report: Report) -> None:
    console.print(f"{report.queue}: {report.total:,} dead letters")
    if not report.total:
        return
    for heading, counts in _tables(report):
        show(console, (heading, "messages"), counts.items())
    show(
        console,
        ("reason", "error", "URN", "id", "data"),
        ([s["reason"], s["error"] or "", s["job"], s["id"] or "", s["data"] or ""] for s in report.samples),
    )


def _tables(report: Report) -> list[tuple[str, dict[str, int]]]:
    hours = {hour: sum(reasons.values()) for hour, reasons in report.by_hour.items()}
    return [
        ("reason", report.by_reason),
        ("URN", report.by_job),
        ("original queue", report.by_original_queue),
        ("failed in the hour (UTC)", dict(list(hours.items())[-24:])),
    ]


def as_json(report: Report) -> str:
    """Return the report as a JSON object."""
    return json.dumps(asdict(report), indent=2, ensure_ascii=False)


def as_html(report: Report) -> str:
    """Return the report as a page that needs nothing beside it; the texts in its pictures are text."""
    page = Environment(
        loader=PackageLoader("babelqueue_spark.jobs", "."), autoescape=True, undefined=StrictUndefined
    ).get_template("dead_letters.html")
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        pictures = [_hours_picture(report), *map(_bars_picture, _tables(report)[:3])] if report.total else []
    return page.render(report=report, pictures=[Markup(picture) for picture in pictures])  # noqa: S704


def _hours_picture(report: Report) -> str:
    figure, axes = _figure(height=2.8)
    bottom = Counter[str]()
    for reason in report.by_reason:
        heights = [reasons.get(reason, 0) for reasons in report.by_hour.values()]
        if any(heights):
            axes.bar(list(report.by_hour), heights, bottom=[bottom[h] for h in report.by_hour], label=reason)
            bottom.update(dict(zip(report.by_hour, heights, strict=True)))
    axes.set_title("dead letters by hour of failure (UTC)", loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(axis="x", rotation=30)
    if bottom:
        axes.legend(frameon=False)
    return _svg(figure)


def _bars_picture(table: tuple[str, dict[str, int]]) -> str:
    heading, counts = table
    figure, axes = _figure(height=0.8 + 0.28 * len(counts))
    bars = axes.barh([name[:60] for name in counts], list(counts.values()))
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.set_title(f"by {heading}", loc="left")
    axes.xaxis.set_visible(False)
    return _svg(figure)


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return file.getvalue().partition("?>")[2].partition(">")[2]


if __name__ == "__main__":
    raise SystemExit(main())
