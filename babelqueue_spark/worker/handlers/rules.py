"""What decisions about messages depend on, besides handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from babelqueue_spark.worker.outcomes import Policy
from babelqueue_spark.worker.publishing import Publishing

if TYPE_CHECKING:
    from babelqueue_spark.tracing.spans import Spans


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one partition.

    Attributes:
        policy: decides between retry, dead letter, release and drop.
        headers: whether the broker keeps any.
        can_wait: whether a queue takes messages that are to be read later.
        check: raises `BabelQueueError` for outputs that cannot be published.
        publishing: what outputs take over, and where failures of subscribers go.
        spans: of handlers; None = tracing is off.
        batch_span: the `traceparent` of the batch.
    """

    policy: Policy
    headers: bool
    can_wait: Callable[[str], bool]
    check: Callable[[Sequence[dict[str, Any]]], None]
    publishing: Publishing
    spans: Spans | None = None
    batch_span: str | None = None
