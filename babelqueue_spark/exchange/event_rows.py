"""Rows of a DataFrame, or events of a process, as an event store keeps them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from babelqueue_spark.connector.rows.bodies import bodies
from babelqueue_spark.connector.rows.columns import WriteRows
from babelqueue_spark.connector.rows.given import extra_of, json_of
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.envelope import META_TYPE, decode
from babelqueue_spark.envelope.columns import TIMESTAMP
from babelqueue_spark.errors import BabelQueueError, OptionError
from babelqueue_spark.exchange.event_table import ORDER, SCHEMA, EventTable
from babelqueue_spark.exchange.stream_ids import StreamId

FILES = "path STRING, size BIGINT, events BIGINT, stats STRING"
STREAM = "_stream"
"""The column with the stream of each row."""
_FILES_ARROW = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("events", pa.int64()), ("stats", pa.string())]
)
_KEYS = dict.fromkeys(("job", "data", "trace_id", "meta", "id", "occurred_at")).keys()
_META = pa.struct([META_TYPE.field("id"), ("created_at", TIMESTAMP), META_TYPE.field("extra")])
_MICROSECOND = timedelta(microseconds=1)
_LATEST = pa.scalar(datetime(9999, 1, 1, tzinfo=UTC), TIMESTAMP)
"""Behind it there is no later time for what comes next."""


def write_rows(table: EventTable, source: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition as one file, and tell of it."""
    context = TaskContext.get()
    assert context is not None, "events are written inside a Spark task"
    ids, row, parts = IdSource(f"{source} {context.partitionId()}"), 0, []
    for batch in batches:
        parts.append(_stored(WriteRows(batch, row), ids))
        row += batch.num_rows
    events = pa.concat_tables([SCHEMA.empty_table(), *parts])
    if len(events):
        file = table.write(events.sort_by(ORDER))
        yield pa.RecordBatch.from_pylist([vars(file)], schema=_FILES_ARROW)


def _stored(rows: WriteRows, ids: IdSource) -> pa.Table:
    """Rows with a column `STREAM` as they are stored."""
    streams = rows.texts(STREAM)
    for text in streams.unique().to_pylist():
        StreamId.parse(text or "")
    given = rows.column("body") is not None
    body = rows.body if given else bodies(rows, pc.coalesce(rows.texts("queue"), streams), ids)
    envelopes = decode(body)
    errors = envelopes.column("error")
    if errors.null_count < len(errors):
        row = pc.indices_nonzero(errors.is_valid())[0].as_py()
        raise _no_event(rows.name(row), f"the error {errors[row].as_py()}")
    meta = envelopes.column("meta")
    times, ids_of_events = (pc.struct_field(meta, name) for name in ("created_at", "id"))
    if (named := rows.column("occurred_at")) is not None:
        times = pc.coalesce(_times_of(named), times)
    placed = pc.and_kleene(ids_of_events.is_valid(), pc.fill_null(pc.less(times, _LATEST), False))
    if not pc.all(placed).as_py():
        row = rows.first_name(pc.invert(placed))
        raise _no_event(row, "no meta.id, or no meta.created_at before the year 9999")
    columns = [streams, times, ids_of_events]
    return pa.Table.from_arrays([*columns, envelopes.column("job"), body], schema=SCHEMA)


def _times_of(named: pa.Array) -> pa.TimestampArray:
    """Return a column of times as they are stored; `OptionError` where it is none."""
    if not (pa.types.is_timestamp(named.type) and named.type.tz):
        raise OptionError(f"the column occurred_at is of the type {named.type}, but takes TIMESTAMP")
    return named.cast(TIMESTAMP)


def _no_event(row: str, its_body_has: str) -> BabelQueueError:
    return BabelQueueError(f"{row} is not an event (its body has {its_body_has}): leave it out")


def events_of(stream: StreamId, events: Sequence[Mapping[str, Any]], last: datetime | None) -> pa.Table:
    """Events as they are stored, at the time that they name, else now and later than those before.

    Raises:
        OptionError: an event has a key that is unknown, or data or meta that JSON cannot carry.
    """
    for number, event in enumerate(events):
        _check(event, f"event {number}")
    columns = {
        "job": pa.array([event.get("job") for event in events], pa.string()),
        "data": pa.array(
            [json_of(event.get("data"), f"event {number}") for number, event in enumerate(events)],
            pa.string(),
        ),
        "trace_id": pa.array([event.get("trace_id") for event in events], pa.string()),
        "meta": pa.array([_meta(event, f"event {number}") for number, event in enumerate(events)], _META),
        STREAM: pa.repeat(str(stream), len(events)),
    }
    rows = _stored(WriteRows(pa.RecordBatch.from_pydict(columns)), IdSource(uuid.uuid4().hex))
    return rows.set_column(1, SCHEMA.field("occurred_at"), pa.array(_times(events, last), TIMESTAMP))


def _check(event: Mapping[str, Any], what: str) -> None:
    unknown = ", ".join(map(str, event.keys() - _KEYS))
    if unknown:
        raise OptionError(f"{what} has {unknown}, but takes {', '.join(_KEYS)}")
    at = event.get("occurred_at")
    if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
        raise OptionError(f"{what} has the occurred_at {at!r}, but takes a datetime with a time zone")


def _meta(event: Mapping[str, Any], what: str) -> dict[str, Any]:
    extra = extra_of(event.get("meta"), what)
    return {"id": event.get("id"), "created_at": event.get("occurred_at"), "extra": extra}


def _times(events: Sequence[Mapping[str, Any]], last: datetime | None) -> Iterator[datetime]:
    now = datetime.fromtimestamp(time.time(), UTC)
    for event in events:
        at = event.get("occurred_at") or (now if last is None else max(now, last + _MICROSECOND))
        last = at if last is None else max(at, last)
        yield at
