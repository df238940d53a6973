"""What a measurement returns, and how it is shown."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self, TypedDict

import pyarrow as pa

from babelqueue_spark.envelope import decode


class Measured(float):
    """The median of what was measured, which knows its parts."""

    samples: tuple[float, ...]

    def __new__(cls, samples: Sequence[float]) -> Self:
        made = super().__new__(cls, median(samples))
        made.samples = tuple(samples)
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:  # of a pickle: some modules measure in another process
        return (self.samples,)


class Row(TypedDict):
    """One comparison: rates a second, their ratio, and the ratio that design asks for (or None).

    The spreads are the least and the most of what was measured.
    """

    work: str
    ours: float
    ours_spread: tuple[float, float]
    peer: str
    theirs: float
    theirs_spread: tuple[float, float]
    ratio: float
    floor: float | None
    unit: str


def row(work: str, ours: float, peer: str, theirs: float, floor: float | None, unit: str = "a second") -> Row:
    """A row with its ratio; figures of `rate` and `in_turns` have their spread."""
    return Row(
        work=work,
        ours=float(ours),
        ours_spread=spread(ours),
        peer=peer,
        theirs=float(theirs),
        theirs_spread=spread(theirs),
        ratio=ours / theirs,
        floor=floor,
        unit=unit,
    )


def spread(figure: float) -> tuple[float, float]:
    """The least and the most that a figure was measured as."""
    samples = figure.samples if isinstance(figure, Measured) else (float(figure),)
    return min(samples), max(samples)


def rate(count: int, run: Callable[[], Any], repeats: int = 3) -> Measured:
    """`count` a second, by the median of `repeats` runs; a run may return how many it moved."""
    rates = []
    for _ in range(repeats):
        gc.collect()
        started = time.perf_counter()
        moved = run()
        rates.append(count / (time.perf_counter() - started))
        if isinstance(moved, int):
            check_moved(moved, count)
    return Measured(rates)


def check_moved(moved: int, count: int) -> None:
    """Refuse a run that did other work than what is measured, such as one on an empty queue.

    Raises:
        ValueError: it moved more or fewer messages.
    """
    if moved != count:
        raise ValueError(
            f"a run moved {moved:,} messages instead of {count:,}: fill its queue before each run"
        )


def in_turns(works: Mapping[str, Callable[[], float]], rounds: int = 3) -> dict[str, Measured]:
    """The median of what each work returns over rounds: in each, all have their turn, and noise hits all.

    Each other round goes backwards, so that none always follows the same one.
    """
    orders = (list(works), list(reversed(works)))
    found = [{name: works[name]() for name in orders[turn % 2]} for turn in range(rounds)]
    return {name: Measured([float(each[name]) for each in found]) for name in works}


def steady_rate(progress: list[Any]) -> float:
    """Rows a second of a query's batches after the first, which pays for what is made once."""
    filled = [entry for entry in progress if entry["numInputRows"]]
    steady = filled[1:] or filled
    count: int = sum(entry["numInputRows"] for entry in steady)
    milliseconds: int = sum(entry["durationMs"]["triggerExecution"] for entry in steady)
    return count * 1000 / milliseconds


def new_queue() -> str:
    """The name of a queue that nobody has used."""
    return f"bench-{uuid.uuid4().hex}"


def read_rate(spark: Any, url: str, queue: str, count: int, folder: Path, **options: Any) -> float:
    """Messages a second that a stream reads from a queue into nothing, in the batches after the first."""
    progress = read_progress(spark, url, queue, folder, **options)
    check_moved(sum(entry["numInputRows"] for entry in progress), count)
    return steady_rate(progress)


def read_progress(spark: Any, url: str, queue: str, folder: Path, **options: Any) -> list[Any]:
    """What Spark says of the batches of a stream that reads what is in a queue into nothing."""
    frame = (
        spark.readStream.format("babelqueue")
        .options(url=url, queue=queue, journalLocation=str(folder / "journal"), **options)
        .load()
    )
    return progress_of(frame.writeStream.format("noop"), folder)


def progress_of(writer: Any, folder: Path) -> list[Any]:
    """What Spark says of the batches of a stream that takes what is there."""
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    progress: list[Any] = query.recentProgress
    return progress


def write_rate(
    spark: Any, url: str, bodies: list[bytes], *, partitions: int = 1, repeats: int = 3, **options: Any
) -> float:
    """Messages a second that `df.write` publishes to new queues, rows of these contents, from memory."""
    columns = decode(pa.array(bodies, pa.binary())).select(["job", "trace_id", "data"])
    frame = spark.createDataFrame(pa.Table.from_batches([columns])).repartition(partitions).cache()
    frame.count()

    def write() -> None:
        given = {**options, "url": url, "queue": new_queue()}
        frame.write.format("babelqueue").options(**given).mode("append").save()

    write()  # warm
    speed = rate(len(bodies), write, repeats)
    frame.unpersist()
    return speed


def show(rows: list[Row]) -> int:
    """Print the rows; returns how many are below their floor."""
    print(f"{'work':44} {'ours':>12}  {'against':44} {'theirs':>12} {'ratio':>8} {'wanted':>8}")
    for each in rows:
        floor = each["floor"]
        wanted = "" if floor is None else f"{floor:g} x"
        print(
            f"{each['work']:44} {each['ours']:12,.0f}  {each['peer']:44} {each['theirs']:12,.0f} "
            f"{each['ratio']:6.2f} x {wanted:>8}{'  below' if is_low(each) else ''}"
        )
    return sum(map(is_low, rows))


def is_low(row: Row) -> bool:
    """Whether a ratio is below its floor."""
    return row["floor"] is not None and row["ratio"] < row["floor"]
