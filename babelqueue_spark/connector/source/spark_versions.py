"""What PySpark 4.2 offers to Python streams and 4.1 does not: `availableNow`, and read limits."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

__all__ = ["ADMISSION_CONTROL", "SupportsTriggerAvailableNow", "is_unlimited", "max_rows"]

ADMISSION_CONTROL = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
"""Whether Spark passes `start` and `limit` to `latestOffset`."""


def max_rows(messages: int) -> Any:
    """Make Spark's read limit of so many rows; 4.1 never asks for one."""
    from pyspark.sql.streaming.datasource import ReadMaxRows

    return ReadMaxRows(messages)


def is_unlimited(limit: Any) -> bool:
    """Return whether Spark asks for all that is there; 4.1 has no such class to compare with."""
    return type(limit).__name__ == "ReadAllAvailable"
