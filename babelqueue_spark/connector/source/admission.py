"""When a batch begins: as soon as there are messages, or once enough of them wait."""

from __future__ import annotations

import math
import time
from typing import Any

from babelqueue_spark.connector.options import Options


class BatchAdmission:
    """Delays batches until `minMessagesPerTrigger` messages wait, or `maxTriggerDelay` is over.

    As in Spark's Kafka source, the delay counts from the last batch, and begins again when it is over. The
    first poll of a query admits what there is: nobody knows for how long it has waited.
    """

    def __init__(self, options: Options) -> None:
        self.minimum = options.min_messages_per_trigger or 0
        self._delay = options.max_trigger_delay
        self._due = -math.inf
        self._held = False

    def admits(self, waiting: float) -> bool:
        """Return whether a batch may begin now."""
        early = waiting < self.minimum and time.monotonic() < self._due
        if not early:
            self._due = time.monotonic() + self._delay
        self._held = early and waiting > 0
        return not early

    def report(self) -> dict[str, Any]:
        """Say for the query's progress whether messages are held at the moment, and for how long at most."""
        if not self._held:
            return {}
        left = max(0.0, self._due - time.monotonic())
        return {"held": {"minimum": self.minimum, "seconds_left": round(left, 1)}}
