"""What is published for handlers and subscribers, and where to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace

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
        best_routes: the routes with one queue each, the best one first.

    Raises:
        OptionError: one of them is invalid.
    """

    context: Sequence[str] = ()
    routes: InitVar[Pairs | None] = None
    schedule: Scheduler | None = None
    failure_queue: str | None = None
    best_routes: Sequence[Route] = field(init=False)

    def __post_init__(self, routes: Pairs | None) -> None:
        object.__setattr__(self, "context", checked_context(self.context))
        object.__setattr__(self, "best_routes", () if routes is None else best_first(checked_routes(routes)))
        check_schedule(self.schedule)

    def checked(self, options: Options) -> Publishing:
        """Return itself; `OptionError` where a queue of the routes has an invalid name."""
        if self.best_routes:
            replace(options, queue=tuple(queue for _, queue in self.best_routes)).check()
        return self


def checked_context(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of `meta`; `OptionError` for one that is not the users'."""
    if isinstance(keys, str):
        raise OptionError(f"context is '{keys}', but takes several keys of meta, such as ('tenant',)")
    for key in keys:
        if not is_extra(key) or key in (CAUSATION_META, REPLY_TO_META):
            raise OptionError(f"context has '{key}', which is not a key of meta that can be taken over")
    return tuple(keys)
