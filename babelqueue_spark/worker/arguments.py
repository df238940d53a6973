"""Check the arguments of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from babelqueue_spark.connector.options import Options
from babelqueue_spark.envelope.strict import is_extra
from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker.backoff import Backoff
from babelqueue_spark.worker.destinations import Pairs, Route, best_first, checked_routes
from babelqueue_spark.worker.idempotency import IdempotencyStore
from babelqueue_spark.worker.messages import CAUSATION_META, REPLY_TO_META
from babelqueue_spark.worker.outcomes import Policy, UnknownUrn


def checked_policy(policy: Policy) -> Policy:
    """Return the policy; `OptionError` where it cannot be."""
    if policy.max_attempts < 1:
        raise OptionError(f"max_attempts is {policy.max_attempts}, but takes a whole number of at least 1")
    if policy.unknown_urn not in get_args(UnknownUrn):
        known = ", ".join(get_args(UnknownUrn))
        raise OptionError(f"unknown_urn is '{policy.unknown_urn}', but takes one of {known}")
    if not isinstance(policy.backoff, Backoff) and any(seconds < 0 for seconds in policy.backoff):
        raise OptionError(f"backoff is {list(policy.backoff)}, but takes seconds, 0 or more")
    if policy.release_delay < 1:
        raise OptionError(
            f"release_delay is {policy.release_delay}, but takes at least 1 s: else it spins hot"
        )
    return policy


def checked_timeout(name: str, seconds: float | None, store: IdempotencyStore | None) -> float | None:
    """Return the seconds; `OptionError` where they do not fit into the lease of the store."""
    if seconds is None:
        return None
    if seconds <= 0:
        raise OptionError(f"{name} is {seconds:g}, but takes seconds, more than 0; None = no limit")
    if store is not None and seconds > store.lease / 2:
        raise OptionError(
            f"{name} is {seconds:g} s, but the store's lease is {store.lease:g} s: make it twice as long, or "
            "another worker may handle what this one is at"
        )
    return seconds


def checked_queues(routes: Pairs | None, options: Options) -> Sequence[Route]:
    """Return the routes, the best one first; `OptionError` where one names what is no queue."""
    if routes is None:
        return ()
    found = best_first(checked_routes(routes))
    replace(options, queue=tuple(queue for _, queue in found)).check()
    return found


def checked_context(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of `meta`; `OptionError` for one that is not the users'."""
    if isinstance(keys, str):
        raise OptionError(f"context is '{keys}', but takes several keys of meta, such as ('tenant',)")
    for key in keys:
        if not is_extra(key) or key in (CAUSATION_META, REPLY_TO_META):
            raise OptionError(f"context has '{key}', which is not a key of meta that can be taken over")
    return tuple(keys)
