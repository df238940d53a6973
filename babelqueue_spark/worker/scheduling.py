"""What a worker needs of a schedule: messages that wait for their time, put there once."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

from babelqueue_spark.errors import OptionError


@runtime_checkable
class Scheduler(Protocol):
    """A schedule, such as the exchange's `Schedule`; it travels to the executors."""

    def put(self, jobs: pa.RecordBatch, key: str) -> None:
        """Store or cancel jobs, all of them, or none where that was done under the same key.

        Args:
            jobs: in the order in which they count, of `OUTGOING_MESSAGES`; those without a `send_at` are
                cancelled.
            key: up to 64 characters.
        """


def check_schedule(schedule: Scheduler | None) -> None:
    """Raise `OptionError` where it is something else."""
    if schedule is not None and not isinstance(schedule, Scheduler):
        raise OptionError(
            f"schedule takes a Schedule of babelqueue_spark.exchange, not a {type(schedule).__name__}"
        )
