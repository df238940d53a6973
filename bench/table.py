"""What a measurement returns, and how it is shown."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

import pyarrow as pa

from babelqueue_spark.envelope import decode


class Row(TypedDict):
    """One comparison: rates a second, their ratio, and the ratio that design asks for (or None)."""

    work: str
    ours: float
    peer: str
    theirs: float
    ratio: float
    floor: float | None


def row(work: str, ours: float, peer: str, theirs: float, floor: float | None) -> Row:
    """A row with its ratio."""
    return Row(work=work, ours=ours, peer=peer, theirs=theirs, ratio=ours / theirs, floor=floor)


def rate(count: int, run: Callable[[], Any], repeats: int = 3) -> float:
    """`count` a second, by the median of `repeats` runs."""
    times = []
    for _ in range(repeats):
        gc.collect()
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return count / median(times)


def in_turns(works: Mapping[str, Callable[[], float]], rounds: int = 3) -> dict[str, float]:
    """The median of what each work returns over rounds: in each, all have their turn, and noise hits all."""
    found = [{name: work() for name, work in works.items()} for _ in range(rounds)]
    return {name: median(each[name] for each in found) for name in works}


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


def read_rate(spark: Any, url: str, queue: str, folder: Path, **options: Any) -> float:
    """Messages a second that a stream reads from a queue into nothing, in the batches after the first."""
    return steady_rate(read_progress(spark, url, queue, folder, **options))


def read_progress(spark: Any, url: str, queue: str, folder: Path, **options: Any) -> list[Any]:
    """What Spark says of the batches of a stream that reads what is in a queue into nothing."""
    query = (
        spark.readStream.format("babelqueue")
        .options(url=url, queue=queue, journalLocation=str(folder / "journal"), **options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
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
    """Print the rows; 1 when a ratio is below its floor."""
    print(f"{'work':44} {'a second':>12}  {'against':44} {'a second':>12} {'ratio':>8} {'wanted':>8}")
    low = 0
    for each in rows:
        floor = each["floor"]
        below = floor is not None and each["ratio"] < floor
        low += below
        wanted = "" if floor is None else f"{floor:g} x"
        print(
            f"{each['work']:44} {each['ours']:12,.0f}  {each['peer']:44} {each['theirs']:12,.0f} "
            f"{each['ratio']:6.2f} x {wanted:>8}{'  below' if below else ''}"
        )
    return 1 if low else 0
