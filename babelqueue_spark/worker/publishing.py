"""What is published for handlers and subscribers, and where to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from babelqueue_spark.connector.options import Options
from babelqueue_spark.envelope.strict import is_extra
from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker.destinations import Pairs, Route, best_first, checked_routes
from babelqueue_spark.worker.messages import CAUSATION_META, REPLY_TO_META
from babelqueue_spark.worker.scheduling import Scheduler, check_schedule


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """Where messages go that handlers and subscribers return, and what they take over.

    Attributes:
        context: keys of `meta` that messages take over from the message that they follow from.
        routes: URN patterns, in which `*` stands for any text, each with a queue, as an `Exchange` takes
            them: where an `Outgoing` without a queue goes, by the best route, as `Exchange.send` has it.
        schedule: the `Schedule` where an `Outgoing` with `send_at` waits, and which a `Cancel` is for.
        failure_queue: where `execution_failed` goes, the message about a subscriber that raised; needed by
            subscribers only.

    Raises:
        OptionError: one of them is invalid.
    """

    context: Sequence[str] = ()
    routes: Pairs | None = None
    schedule: Scheduler | None = None
    failure_queue: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", checked_context(self.context))
        if self.routes is not None:
            object.__setattr__(self, "routes", tuple(best_first(checked_routes(self.routes))))
        check_schedule(self.schedule)
        if self.failure_queue is not None and not self.failure_queue.strip():
            raise OptionError("failure_queue is empty: name a queue")

    @property
    def best_routes(self) -> Sequence[Route]:
        """The routes with one queue each, the best one first."""
        routes: Any = self.routes or ()
        return tuple(routes)

    def check_queues(self, options: Options) -> None:
        """Raise `OptionError` where a queue has a name that the broker cannot have."""
        queues = [*(queue for _, queue in self.best_routes), *filter(None, [self.failure_queue])]
        if queues:
            replace(options, queue=tuple(queues)).check()


def checked_context(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of `meta`; `OptionError` for one that is not the users'."""
    if isinstance(keys, str):
        raise OptionError(f"context is '{keys}', but takes several keys of meta, such as ('tenant',)")
    for key in keys:
        if not is_extra(key) or key in (CAUSATION_META, REPLY_TO_META):
            raise OptionError(f"context has '{key}', which is not a key of meta that can be taken over")
    return tuple(keys)
