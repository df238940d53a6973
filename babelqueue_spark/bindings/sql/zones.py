"""Recognise rows whose writer keeps its times in another time zone."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, Table, func, select

from babelqueue_spark.bindings.sql import times
from babelqueue_spark.bindings.sql.client import SqlClient

_SKEW = 60.0
"""Seconds by which the clock of a writer may be ahead."""


def advice(client: SqlClient, table: Table, named: tuple[ColumnElement[bool], ...], zone: ZoneInfo) -> str:
    """Say which zone is wrong where rows were written later than now; empty where none was."""
    if "available_at" not in table.c:
        return ""
    with client.reading() as connection:
        later = times.written(client.dialect.now(connection) + _SKEW, zone)
        ahead = (*named, table.c.available_at > later, table.c.created_at > later)
        rows = connection.execute(select(func.count()).select_from(table).where(*ahead)).scalar_one()
    if not rows:
        return ""
    return (
        f"{rows:,} messages were written later than now in {zone.key}: set sql.time_zone to the zone of "
        "their writer, PHP's date.timezone"
    )
