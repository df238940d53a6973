"""How much of which queue one trigger reads: the plan that stands in Spark's offset and in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from babelqueue_spark.errors import OptionError
from babelqueue_spark.options import Options

VERSION = 1
_WORTH_A_PARTITION = 1000
"""Messages below which another claimer costs more than it brings."""


def check_no_offsets(options: Options) -> None:
    """`OptionError` where offsets are given, which queues have not."""
    given = next((name for name in ("startingOffsets", "endingOffsets") if name in options.given), None)
    if given:
        raise OptionError(f"option '{given}' has no meaning for broker '{options.broker}': remove it")


@dataclass
class Claim(InputPartition):
    """One partition of one batch: what an executor claims, or finds claimed in the journal.

    Attributes:
        batch: number of the journal's batch.
        index: number of the partition within its batch.
        queue: physical queue.
        messages: most messages to claim.
        max_bytes: most bytes of bodies to claim (one message may exceed it).
        committed: batches up to this one are finished with.
    """

    batch: int
    index: int
    queue: str
    messages: int
    max_bytes: int
    committed: int


@dataclass
class QueueShare(InputPartition):
    """One partition of a batch read: a queue to browse."""

    queue: str


def offset(journal: str, batch: int, **plan: Any) -> dict[str, Any]:
    """What Spark keeps of a batch; holds no receipt and no secret."""
    return {"version": VERSION, "journal": journal, "batch": batch, **plan}


def plan_reads(backlog: Mapping[str, int], options: Options, budget: int | None) -> list[dict[str, Any]]:
    """How many messages each queue gives, and to how many claimers.

    Args:
        backlog: queue → messages ready.
        options: bounds of a trigger.
        budget: most messages in all; None = the whole backlog, in partitions of the usual size.

    Returns:
        One dict per queue that gives anything: queue, partitions, messages, bytes (both in all).
    """
    shares = _fair_shares(backlog, budget)
    usual = -(-options.max_messages // options.num_partitions)
    reads = []
    for queue, messages in shares.items():
        partitions = min(options.num_partitions, -(-messages // _WORTH_A_PARTITION))
        max_bytes = options.max_bytes * messages // sum(shares.values())
        if budget is None:
            partitions = max(partitions, -(-messages // usual))
            max_bytes = partitions * max(1, options.max_bytes // options.num_partitions)
        reads.append({"queue": queue, "partitions": partitions, "messages": messages, "bytes": max_bytes})
    return reads


def _fair_shares(backlog: Mapping[str, int], budget: int | None) -> dict[str, int]:
    waiting = {queue: count for queue, count in backlog.items() if count > 0}
    if budget is None or sum(waiting.values()) <= budget:
        return waiting
    shares: dict[str, int] = {}
    for queue, count in sorted(waiting.items(), key=lambda item: item[1]):
        shares[queue] = min(count, budget // (len(waiting) - len(shares)))
        budget -= shares[queue]
    return {queue: shares[queue] for queue in waiting if shares[queue] > 0}


def claims(plan: Mapping[str, Any], committed: int) -> list[Claim]:
    """The partitions of a planned batch, the same ones each time."""
    found: list[Claim] = []
    for read in plan.get("reads", []):
        partitions = read["partitions"]
        for part in range(partitions):
            found.append(
                Claim(
                    batch=plan["batch"],
                    index=len(found),
                    queue=read["queue"],
                    messages=read["messages"] // partitions + (part < read["messages"] % partitions),
                    max_bytes=max(1, read["bytes"] // partitions),
                    committed=committed,
                )
            )
    return found
