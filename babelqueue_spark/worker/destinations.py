"""Routes of messages: URN patterns and the queues where their messages go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.envelope.urns import matches, specificity
from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker.messages import CANCELLED

Queues = str | Iterable[str]
Pairs = Mapping[str, Queues] | Iterable[tuple[str, Queues]]
Route = tuple[str, str]
"""A pattern of URNs, and a queue."""


def checked_routes(pairs: Pairs) -> list[Route]:
    """Return each pattern with each of its queues; `OptionError` where there is none, or one lacks a part."""
    given = pairs.items() if isinstance(pairs, Mapping) else pairs
    try:
        found = [(pattern.strip(), queue.strip()) for pattern, to in given for queue in _listed(to)]
    except (AttributeError, TypeError, ValueError):
        found = []
    if not found or not all(pattern and queue for pattern, queue in found):
        raise OptionError(
            "routes take URN patterns with queues, such as {'urn:babel:orders:*': ['billing', 'audit']}"
        )
    return list(dict.fromkeys(found))


def _listed(queues: Queues) -> Iterable[str]:
    return [queues] if isinstance(queues, str) else list(queues) or [""]


def best_first(routes: Iterable[Route]) -> list[Route]:
    """Sort routes: an exact URN first, then by characters of the pattern besides `*`, then as given."""
    return sorted(routes, key=lambda route: specificity(route[0]))


@dataclass(frozen=True)
class Destinations:
    """Where what handlers return goes.

    Attributes:
        options: of the writes; their `queue` is for what names no queue and has no route.
        binding: of the broker.
        routes: the best one first.
        schedules: whether there is a schedule.
    """

    options: Options
    binding: BaseBinding
    routes: Sequence[Route] = ()
    schedules: bool = False

    def queue_of(self, outgoing: Mapping[str, Any]) -> str:
        """Return the queue of a message as columns of a write; `OptionError` where it has none."""
        urn, named = outgoing["job"], outgoing["queue"]
        routed = (queue for pattern, queue in self.routes if matches(pattern, urn))
        found = named or next(routed, None) or next(iter(self.options.queue), None)
        if found is None:
            known = ", ".join(f"'{pattern}'" for pattern, _ in self.routes[:5])
            missing = f"no route of {known} matches it" if known else "the worker has no routes"
            raise OptionError(
                f"a handler returned '{urn}' without a queue, and {missing}: give the Outgoing a queue, add "
                "a route to Publishing(routes=…), or set the option 'queue'"
            )
        return found

    def is_scheduled(self, output: Mapping[str, Any]) -> bool:
        """Tell whether what a handler returned is for the schedule; `OptionError` where there is none."""
        found = CANCELLED in output or output.get("send_at") is not None
        if found and not self.schedules:
            raise OptionError(
                "a handler returned an Outgoing with send_at, or a Cancel, and the worker has no schedule: "
                "give it one, Publishing(schedule=Schedule(…))"
            )
        return found
