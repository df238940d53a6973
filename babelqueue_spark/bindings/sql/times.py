"""Times as the tables keep them: text on the wall clock of a time zone, in whole seconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

_FORMAT = "%Y-%m-%d %H:%M:%S"
_LAST_SECOND = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def written(epoch_seconds: float, zone: ZoneInfo) -> str:
    """`2026-01-31 12:00:00`: the second that has begun."""
    return _text(_wall(epoch_seconds, zone))


def written_due(epoch_seconds: float, delay: int, zone: ZoneInfo) -> str:
    """Return the first second that begins `delay` milliseconds later; this one without a delay."""
    return written(math.ceil(epoch_seconds + delay / 1000) if delay > 0 else epoch_seconds, zone)


def written_before(epoch_seconds: float, age: int, zone: ZoneInfo) -> str:
    """Return the text up to which times sort that are `age` seconds old, also over a change of clocks."""
    on_the_wall = _wall(epoch_seconds, zone) - timedelta(seconds=age)
    return min(_text(on_the_wall), written(epoch_seconds - age, zone))


def read(column: pa.StringArray, zone: ZoneInfo) -> pa.TimestampArray:
    """Return the instants of written times; null for what is none."""
    wall = pc.strptime(column, format=_FORMAT, unit="us", error_is_null=True)
    return pc.assume_timezone(wall, zone.key, ambiguous="earliest", nonexistent="latest")


def _wall(epoch_seconds: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(math.floor(min(epoch_seconds, _LAST_SECOND)), zone).replace(tzinfo=None)


def _text(wall: datetime) -> str:
    return wall.isoformat(sep=" ")
