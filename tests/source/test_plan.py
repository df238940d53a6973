"""How a trigger's budget is shared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.options import Options, read_options
from babelqueue_spark.source.plan import claims, plan_reads


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


def test_without_a_budget_all_is_planned_in_partitions_of_the_usual_size() -> None:
    [read] = plan_reads({"a": 1_000_001}, options(maxMessagesPerTrigger=100_000), None)
    assert (read["messages"], read["partitions"]) == (1_000_001, 41)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50_000), min_size=1),
    st.integers(1, 20_000),
    st.integers(1, 1 << 30),
)
@pytest.mark.filterwarnings("ignore")
def test_bounds_hold_and_nothing_is_left_out(backlog: dict[str, int], budget: int, max_bytes: int) -> None:
    reads = plan_reads(backlog, options(maxBytesPerTrigger=max_bytes), budget)
    planned = {"journal": "j", "batch": 3, "reads": reads}
    found = claims(planned, committed=2)
    assert sum(claim.messages for claim in found) == min(budget, sum(backlog.values()))
    assert [claim.index for claim in found] == list(range(len(found)))
    assert all(claim.messages > 0 and claim.batch == 3 and claim.committed == 2 for claim in found)
    assert sum(claim.max_bytes for claim in found) <= max_bytes + len(found)
    assert [vars(claim) for claim in claims(planned, committed=2)] == [vars(claim) for claim in found]
