"""How a trigger's budget is shared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.connector.options import Options, read_options
from babelqueue_spark.connector.source.plan import claims, count_tasks, plan_reads, task_bytes
from tests.examples import examples


def options(**given: Any) -> Options:
    return read_options(
        {
            "url": "sqlite:////q.db",
            "queue": "q",
            "numPartitions": "4",
            **{k: str(v) for k, v in given.items()},
        }
    )


def test_an_empty_backlog_plans_nothing() -> None:
    assert plan_reads({"a": 0, "b": 0}, options(), 100) == []


def test_a_small_backlog_gets_one_claimer() -> None:
    assert plan_reads({"a": 999}, options(), 10_000)[0]["partitions"] == 1
    assert plan_reads({"a": 3500}, options(), 10_000)[0]["partitions"] == 4
    assert plan_reads({"a": 10_000}, options(), 10_000)[0]["partitions"] == 4


def test_a_quiet_queue_is_not_starved_by_a_busy_one() -> None:
    reads = plan_reads({"busy": 1_000_000, "quiet": 10}, options(), 1000)
    assert {read["queue"]: read["messages"] for read in reads} == {"busy": 990, "quiet": 10}


def test_many_queues_share_the_tasks() -> None:
    reads = plan_reads({f"q{number}": 500 + number for number in range(200)}, options(), 200_000)
    tasks = count_tasks(reads, options(), 200_000)
    found = claims({"journal": "j", "batch": 1, "reads": reads, "tasks": tasks}, committed=0)
    assert [len(claim.shares) for claim in found] == [50] * 4
    loads = [sum(share.messages for share in claim.shares) for claim in found]
    assert max(loads) - min(loads) < 700
    assert found[0].queues.startswith("queues q199, ")
    assert found[0].queues.endswith(" and 47 more")


def test_more_queues_than_messages_take_turns() -> None:
    backlog = {"quiet": 1, "b": 50, "c": 50}
    turns = [plan_reads(backlog, options(), 2, turn) for turn in range(3)]
    assert {read["queue"] for reads in turns for read in reads} == {"quiet", "b", "c"}
    assert all([read["messages"] for read in reads] == [1, 1] for reads in turns)


def test_a_task_of_many_queues_is_bounded_by_its_bytes() -> None:
    reads = plan_reads({f"q{number}": 10 for number in range(100)}, options(maxBytesPerTrigger="256m"), None)
    plan = {"journal": "j", "batch": 1, "reads": reads, "tasks": 1}
    [claim] = claims(
        {**plan, "task_bytes": task_bytes(options(maxBytesPerTrigger="256m"), None)}, committed=0
    )
    assert claim.max_bytes == 64 << 20


def test_without_a_budget_all_is_planned_in_partitions_of_the_usual_size() -> None:
    [read] = plan_reads({"a": 1_000_001}, options(maxMessagesPerTrigger=100_000), None)
    assert (read["messages"], read["partitions"]) == (1_000_001, 41)


@examples(100)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50_000), min_size=1),
    st.integers(1, 20_000),
    st.integers(1, 1 << 30),
)
@pytest.mark.filterwarnings("ignore")
def test_bounds_hold_and_nothing_is_left_out(backlog: dict[str, int], budget: int, max_bytes: int) -> None:
    reads = plan_reads(backlog, options(maxBytesPerTrigger=max_bytes), budget)
    tasks = count_tasks(reads, options(), budget)
    planned = {"journal": "j", "batch": 3, "reads": reads, "tasks": tasks}
    found = claims(planned, committed=2)
    shares = [share for claim in found for share in claim.shares]
    assert len(found) <= 4
    assert sum(share.messages for share in shares) == min(budget, sum(backlog.values()))
    assert [claim.index for claim in found] == list(range(len(found)))
    assert all(claim.shares and claim.batch == 3 and claim.committed == 2 for claim in found)
    assert all(share.messages > 0 for share in shares)
    parts = sum(read["partitions"] for read in reads)  # each may claim one byte at least
    assert sum(share.max_bytes for share in shares) <= max_bytes + parts
    assert all(len({share.queue for share in claim.shares}) == len(claim.shares) for claim in found)
    assert [vars(claim) for claim in claims(planned, committed=2)] == [vars(claim) for claim in found]
