"""Which faults are injected, when, and for how long: all of it follows from a seed, and is written down."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from chaos.setups import SETUPS, Setup

SHORTEST = 3.0
"""Seconds for which a fault and its pause take at least: bounds how many faults a plan needs."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: key of `chaos.faults.FAULTS`.
        pause: seconds between the recovery from the last fault and this one.
        seconds: how long it lasts, where it lasts.
        choice: from 0 to 1: which of several processes, how many requests, and such.
    """

    kind: str
    pause: float
    seconds: float
    choice: float


@dataclass(frozen=True)
class Plan:
    """The faults of a run.

    Attributes:
        seed: what all of it follows from.
        seconds: for which faults are injected into each setup.
        faults: by name of the setup, in their order; those for which no time is left are not injected.
    """

    seed: int
    seconds: float
    faults: dict[str, list[Fault]]


def plan(seed: int, minutes: float, setups: Sequence[str]) -> Plan:
    """Plan faults for each of the setups, which share the minutes."""
    seconds = minutes * 60 / len(setups)
    most = max(1, int(seconds / SHORTEST))
    faults = {}
    for name in setups:
        # A sequence of its own for each: the faults of one do not depend on which others are tried.
        chance = random.Random(f"{seed} {name}")
        kinds = _kinds(SETUPS[name], chance)
        faults[name] = [_fault(next(kinds), chance) for _ in range(most)]
    return Plan(seed, seconds, faults)


def possible(setup: Setup) -> list[str]:
    """The kinds of faults that a setup can have."""
    kinds = ["driver", "jvm", "planner", "worker", "stall", "clock", *(["executor"] if setup.cluster else [])]
    if setup.server is not None:
        kinds += ["broker", "cut", "delay", "freeze"]
    if setup.title.startswith(("Redis", "RabbitMQ")):
        kinds += ["password"]
    if setup.bucket:
        kinds += ["store 503", "store 409", "store lost", "store late"]
    else:
        kinds += ["disk"]
    return kinds


def keep(made: Plan, file: Path) -> None:
    """Write a plan."""
    file.write_text(json.dumps(asdict(made), indent=1) + "\n")


def kept(file: Path) -> Plan:
    """Read a plan."""
    found = json.loads(file.read_text())
    faults = {name: [Fault(**each) for each in listed] for name, listed in found["faults"].items()}
    return Plan(found["seed"], found["seconds"], faults)


def _kinds(setup: Setup, chance: random.Random) -> Iterator[str]:
    """All kinds in some order, then all of them in another one: none is left out for long."""
    while True:
        kinds = possible(setup)
        chance.shuffle(kinds)
        yield from kinds


def _fault(kind: str, chance: random.Random) -> Fault:
    return Fault(
        kind,
        pause=round(chance.uniform(0.0, 1.5), 2),
        seconds=round(chance.uniform(1.0, 4.0), 2),
        choice=round(chance.random(), 3),
    )
