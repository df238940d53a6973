"""Plan how much of which queue one trigger reads; the plan is kept in Spark's offset and in the journal."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.source.spark_versions import ADMISSION_CONTROL
from babelqueue_spark.errors import OptionError

VERSION = 1
WORTH_A_TASK = 1000
"""Messages that are worth a reader task of their own; below, another task costs more than it saves."""


def check_no_offsets(options: Options) -> None:
    """Raise `OptionError` if offsets were given; a queue has none."""
    given = next((name for name in ("startingOffsets", "endingOffsets") if name in options.given), None)
    if given:
        raise OptionError(f"option '{given}' has no meaning for broker '{options.broker}': remove it")


@dataclass
class Share:
    """What one reader task claims from one queue.

    Attributes:
        queue: physical queue.
        messages: most messages to claim.
        max_bytes: most bytes of bodies to claim (one message may exceed it).
    """

    queue: str
    messages: int
    max_bytes: int


@dataclass
class Claim(InputPartition):
    """Tells one reader task what to claim, unless the journal has its segment already.

    Attributes:
        journal: id of the driver's journal.
        batch: number of the journal's batch.
        index: number of the partition within its batch.
        shares: one for each queue.
        max_bytes: most bytes of bodies to claim from all of them (one message may exceed it).
        committed: last batch that Spark has finished.
        settled_at: seconds since 1970 by the broker's clock, at which it could deliver nothing again that
            the journal held, and nothing of this batch was claimed; None where none is known.
        tasks: partitions of the batch.
    """

    journal: str
    batch: int
    index: int
    shares: list[Share]
    max_bytes: int
    committed: int
    settled_at: float | None = None
    tasks: int = 1

    @property
    def queues(self) -> str:
        """The queues as logs and errors name them."""
        names = [share.queue for share in self.shares]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ("queue " if len(names) == 1 else "queues ") + ", ".join(names[:3]) + more


@dataclass
class QueueShare(InputPartition):
    """Tells one task of a batch read which queue to browse."""

    queue: str


def offset(journal: str, batch: int, **plan: Any) -> dict[str, Any]:
    """Make the offset that Spark keeps of a batch; it holds no receipt and no secret."""
    return {"version": VERSION, "journal": journal, "batch": batch, **plan}


def budget_of(options: Options, *, first: bool, unlimited: bool) -> int | None:
    """Return the most messages of one batch; None is the whole backlog.

    Args:
        options: the bounds of a trigger.
        first: whether this is the first batch that the query plans. Without admission control, Spark ends
            `availableNow` after it, so it has no bound unless the user set one.
        unlimited: whether Spark asks for the whole backlog.
    """
    bounded = "maxMessagesPerTrigger" in options.given
    if unlimited or (first and not bounded and not ADMISSION_CONTROL):
        return None
    return options.max_messages_per_trigger


def plan_reads(
    backlog: Mapping[str, int], options: Options, budget: int | None, turn: int = 0
) -> list[dict[str, Any]]:
    """Plan how many messages each queue gives, to how many reader tasks.

    Args:
        backlog: queue → messages ready.
        options: the bounds of a trigger.
        budget: most messages in all; None plans the whole backlog, in partitions of the usual size.
        turn: number of the batch. With more queues than messages, each batch reads the next queues.

    Returns:
        A dict for each queue that gives messages: queue, partitions, messages and bytes (of all partitions).
    """
    shares = _fair_shares(backlog, budget, turn)
    total = sum(shares.values())
    usual = _usual_size(options)
    reads = []
    for queue, messages in shares.items():
        partitions = min(-(-options.num_partitions * messages // total), -(-messages // WORTH_A_TASK))
        max_bytes = options.max_bytes_per_trigger * messages // total
        if budget is None:
            partitions = max(partitions, -(-messages // usual))
            max_bytes = partitions * max(1, options.max_bytes_per_trigger // options.num_partitions)
        reads.append({"queue": queue, "partitions": partitions, "messages": messages, "bytes": max_bytes})
    return reads


def count_tasks(reads: Iterable[Mapping[str, Any]], options: Options, budget: int | None) -> int:
    """Return how many reader tasks share planned reads: `numPartitions`, or as many as have enough to do.

    Without a budget there may be more of them, of the usual size.
    """
    messages: int = sum(read["messages"] for read in reads)
    tasks = min(options.num_partitions, -(-messages // WORTH_A_TASK))
    return max(tasks, -(-messages // _usual_size(options))) if budget is None else tasks


def task_bytes(options: Options, budget: int | None) -> int:
    """Return the most bytes of bodies that one reader task claims."""
    most = options.max_bytes_per_trigger
    return most if budget is not None else max(1, most // options.num_partitions)


def _usual_size(options: Options) -> int:
    return -(-options.max_messages_per_trigger // options.num_partitions)


def _fair_shares(backlog: Mapping[str, int], budget: int | None, turn: int) -> dict[str, int]:
    waiting = {queue: count for queue, count in backlog.items() if count > 0}
    if budget is None or sum(waiting.values()) <= budget:
        return waiting
    if budget < len(waiting):
        first = turn * budget % len(waiting)
        queues = [*waiting][first:] + [*waiting][:first]
        return dict.fromkeys(queues[:budget], 1)
    shares: dict[str, int] = {}
    for queue, count in sorted(waiting.items(), key=lambda item: item[1]):
        shares[queue] = min(count, budget // (len(waiting) - len(shares)))
        budget -= shares[queue]
    return {queue: shares[queue] for queue in waiting if shares[queue] > 0}


def claims(plan: Mapping[str, Any], committed: int, settled_at: float | None = None) -> list[Claim]:
    """Divide a planned batch into partitions; a repeated call makes the same ones."""
    shares = [
        Share(
            read["queue"],
            read["messages"] // read["partitions"] + (part < read["messages"] % read["partitions"]),
            max(1, read["bytes"] // read["partitions"]),
        )
        for read in plan.get("reads", [])
        for part in range(read["partitions"])
    ]
    tasks = _divided(shares, min(plan.get("tasks", len(shares)), len(shares)))
    return [
        Claim(
            plan["journal"],
            plan["batch"],
            index,
            members,
            min(sum(share.max_bytes for share in members), plan.get("task_bytes", math.inf)),
            committed,
            settled_at,
            len(tasks),
        )
        for index, members in enumerate(tasks)
    ]


def _divided(shares: Iterable[Share], tasks: int) -> list[list[Share]]:
    """Give each task about as many messages, and of each queue one share."""
    divided: list[dict[str, Share]] = [{} for _ in range(tasks)]
    loads = [(0, task) for task in range(tasks)]
    for share in sorted(shares, key=lambda share: share.messages, reverse=True):
        load, task = heapq.heappop(loads)
        heapq.heappush(loads, (load + share.messages, task))
        other = divided[task].get(share.queue, Share(share.queue, 0, 0))
        divided[task][share.queue] = Share(
            share.queue, other.messages + share.messages, other.max_bytes + share.max_bytes
        )
    return [list(members.values()) for members in divided]
