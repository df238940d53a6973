"""No body costs time that grows with the square of its length."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.envelope import dead_letter, decode, set_attempts, strip_dead_letter
from tests.envelope.bodies import blocks, body
from tests.envelope.hostile import TIMES_THE_ORDINARY, hostile, nanoseconds

HOSTILE = hostile(20_000)
#: As `json.dumps` writes it: an ordinary body that is not canonical, so that it takes its own parse.
ORDINARY = [json.dumps(json.loads(body(data={"order_id": 1042, "note": "x" * 90}))).encode()] * 2_000

WORKS: dict[str, Callable[[Any], Any]] = {
    "decode": decode,
    "set attempts": lambda bodies: set_attempts(bodies, pa.array([7] * len(bodies), pa.int32())),
    "dead letter": lambda bodies: dead_letter(bodies, blocks(*[{}] * len(bodies))),
    "poison": lambda bodies: dead_letter(bodies, blocks(*[{"reason": "poison"}] * len(bodies))),
    "strip": strip_dead_letter,
}


@pytest.mark.parametrize("work", WORKS)
def test_no_body_costs_a_multiple_of_an_ordinary_one(work: str) -> None:
    budget = TIMES_THE_ORDINARY * a_byte(work, ORDINARY, rounds=3)
    costs = {name: a_byte(work, [one], rounds=1) for name, one in HOSTILE.items()}
    suspects = [name for name, cost in costs.items() if cost > budget / 2]
    costs = {name: a_byte(work, [HOSTILE[name]], rounds=15) for name in suspects}
    assert {name: round(cost) for name, cost in costs.items() if cost > budget} == {}, round(budget)


def a_byte(work: str, bodies: list[bytes], rounds: int) -> float:
    return nanoseconds(WORKS[work], bodies, rounds) / sum(map(len, bodies))
