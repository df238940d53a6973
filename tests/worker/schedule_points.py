"""Arms the points of the worker, and those of its schedule. Handlers name this module, as they do `crash_points`."""

from __future__ import annotations

from sitecustomize import after, before

from babelqueue_spark.exchange import Schedule
from tests.worker.crash_points import enter

__all__ = ["enter"]

before(Schedule, "put", "before the schedule")
after(Schedule, "put", "after the schedule")
