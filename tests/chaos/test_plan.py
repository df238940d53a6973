"""What follows from a seed: the faults of a run, their order and how long they last."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.faults import FAULTS
from chaos.plan import SHORTEST, keep, kept, plan, possible
from chaos.setups import SETUPS


def test_a_seed_gives_the_same_faults() -> None:
    assert plan(7, 10, ["redis", "kafka"]) == plan(7, 10, ["redis", "kafka"])
    assert plan(7, 10, ["redis"]).faults != plan(8, 10, ["redis"]).faults


def test_the_faults_of_a_broker_do_not_depend_on_the_others() -> None:
    alone, beside = plan(7, 5, ["kafka"]), plan(7, 10, ["redis", "kafka"])
    assert alone.seconds == beside.seconds
    assert alone.faults["kafka"] == beside.faults["kafka"]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = plan(7, 10, list(SETUPS))
    keep(made, tmp_path / "plan.json")
    assert kept(tmp_path / "plan.json") == made


@pytest.mark.parametrize("name", SETUPS)
def test_each_kind_that_is_possible_comes_before_any_comes_again(name: str) -> None:
    kinds = possible(SETUPS[name])
    assert set(kinds) <= set(FAULTS)
    planned = plan(7, SHORTEST * len(kinds) / 60, [name]).faults[name]
    assert sorted(fault.kind for fault in planned) == sorted(kinds)


def test_all_faults_are_tried_somewhere() -> None:
    assert {kind for setup in SETUPS.values() for kind in possible(setup)} == set(FAULTS)
