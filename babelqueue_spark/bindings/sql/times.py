"""Times as the tables keep them: text on the wall clock of a time zone, in whole seconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Table, func, select

from babelqueue_spark.bindings.sql.client import SqlClient

_FORMAT = "%Y-%m-%d %H:%M:%S"
_SKEW = 60.0
"""Seconds by which the clock of a writer may be ahead."""
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


def zone_advice(
    client: SqlClient, table: Table, named: tuple[ColumnElement[bool], ...], zone: ZoneInfo
) -> str:
    """Say which zone is wrong where rows were written later than now; empty where none was."""
    if "available_at" not in table.c:
        return ""
    with client.reading() as connection:
        later = written(client.dialect.now(connection) + _SKEW, zone)
        ahead = (*named, table.c.available_at > later, table.c.created_at > later)
        rows = connection.execute(select(func.count()).select_from(table).where(*ahead)).scalar_one()
    if not rows:
        return ""
    return (
        f"{rows:,} messages were written later than now in {zone.key}: set sql.time_zone to the zone of "
        "their writer, PHP's date.timezone"
    )


def _wall(epoch_seconds: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(math.floor(min(epoch_seconds, _LAST_SECOND)), zone).replace(tzinfo=None)


def _text(wall: datetime) -> str:
    return wall.isoformat(sep=" ")
