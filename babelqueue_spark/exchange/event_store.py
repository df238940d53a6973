"""Streams of events in a table of Delta Lake, which every PySpark and other programs read."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.envelope import decode
from babelqueue_spark.envelope.columns import TIMESTAMP
from babelqueue_spark.errors import BabelQueueError, EventConflictError, EventStoreError
from babelqueue_spark.exchange.event_table import COLUMNS, ORDER, SCHEMA, EventFile, EventTable, paths_with
from babelqueue_spark.exchange.following import EventDataSource
from babelqueue_spark.exchange.stream_ids import StreamId
from babelqueue_spark.rows.bodies import blocks_of, bodies, column_of
from babelqueue_spark.rows.ids import IdSource

_FILES = "path STRING, size BIGINT, events BIGINT, stats STRING"
_FILES_ARROW = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("events", pa.int64()), ("stats", pa.string())]
)
_MICROSECOND = timedelta(microseconds=1)
_ATTEMPTS = 20
_STREAM = "_stream"


@dataclass(frozen=True, order=True)
class Cursor:
    """A place in a stream: behind one event, before the next.

    Attributes:
        occurred_at: of the event, in microseconds.
        event_id: of the event; equal times are told apart by it.
    """

    occurred_at: datetime
    event_id: str


@dataclass(frozen=True)
class Slice:
    """Some events of a stream, one after the other.

    Attributes:
        stream: which.
        events: in the order that was asked for; columns `stream`, `occurred_at`, `event_id`, `job`, `body`.
        has_more: whether the stream goes on behind them, in that order.
    """

    stream: StreamId
    events: pa.Table
    has_more: bool

    @property
    def cursor(self) -> Cursor | None:
        """The place of the last of these events; None where there is none."""
        return _cursor(self.events.slice(len(self.events) - 1)) if len(self.events) else None


class EventStore:
    """Events in streams, ordered by time and id, in a Delta table that is made where it is missing.

    Args:
        location: a directory, or the URL of an object store (`s3://bucket/path`).
        options: of the object store, by delta-rs's names (`aws_endpoint_url`); references are resolved.
            Credentials come from the provider's environment variables, as a journal's do.
    """

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self._table = EventTable(str(location), dict(options or {}))

    def append(
        self, frame: DataFrame, stream: StreamId | str | Column, txn: tuple[str, int] | None = None
    ) -> int:
        """Append the rows of a DataFrame as events, all or none; returns how many.

        Executors write files, and the driver commits them at once.

        Args:
            frame: columns of a write (`job`, `data`, …), or a column `body` that is kept byte for byte.
            stream: of all of them, or a column with the id of each one's stream.
            txn: application and version, as Delta's `txnAppId` and `txnVersion`: a version that is in the
                table, or is older than one of its application, appends nothing.

        Raises:
            BabelQueueError: a row is not an event; names the row. Nothing is appended.
            EventStoreError: the table cannot be written.
        """
        if self._table.has(self._table.opened(), txn):
            return 0
        column = stream if isinstance(stream, Column) else F.lit(str(_parsed(stream)))
        rows = frame.withColumn(_STREAM, column.cast("string"))
        source = " ".join(map(str, txn)) if txn else uuid.uuid4().hex
        found = rows.mapInArrow(partial(_write, self._table, source), _FILES).collect()
        files = [EventFile(*row) for row in found]
        if not (files or txn) or not self._table.commit(files, txn):
            return 0
        return sum(file.events for file in files)

    def put(
        self,
        stream: StreamId | str,
        events: Sequence[Mapping[str, Any]],
        expected: str | None = None,
    ) -> list[str]:
        """Append events from this process; returns their ids.

        Their times are later than those of all events in the stream.

        Args:
            stream: of all of them.
            events: of each `job` and `data` (an object, or its JSON text), and if need be `trace_id`.
            expected: the id of the event that the stream ends with; empty where it must have none; None
                where that does not matter. Of several writers that expect the same one succeeds.

        Raises:
            EventConflictError: the stream ends with another event.
            EventStoreError: the table cannot be written.
        """
        stream = _parsed(stream)
        if not events:
            return []
        for _ in range(_ATTEMPTS):
            table = self._table.opened()
            last = self._slice(table, stream, since=None, count=1, forward=False).cursor
            if expected is not None and expected != (last.event_id if last else ""):
                ends = f"with {last.event_id}" if last else "before its first event"
                raise EventConflictError(
                    f"stream {stream} of {self._table.location} ends {ends}, not "
                    f"{'with ' + expected if expected else 'before its first event'}: read what is new, and "
                    "decide again"
                )
            rows = _events_of(stream, events, last)
            ids: list[str] = rows["event_id"].to_pylist()
            if self._table.append_at(table, rows) or self.get(stream, ids[0]) is not None:
                return ids
        raise EventStoreError(
            f"event store {self._table.location}: {_ATTEMPTS} attempts met other writers: append, or put less"
        )

    def slice(
        self,
        stream: StreamId | str,
        since: Cursor | datetime | None = None,
        count: int = 25,
        *,
        forward: bool = True,
    ) -> Slice:
        """Read some events of a stream.

        Args:
            stream: which.
            since: where to begin; the event at this place, or those at this time, are not read. None = at
                the first event, or backwards at the last.
            count: most events.
            forward: in the order of time, or backwards.
        """
        return self._slice(self._table.opened(), _parsed(stream), since, count, forward=forward)

    def get(self, stream: StreamId | str, event_id: str) -> dict[str, Any] | None:
        """One event of a stream as a dict of the columns of a slice; None where it has no such event."""
        stream = str(_parsed(stream))
        wanted = (pc.field("stream") == stream) & (pc.field("event_id") == event_id)
        found = self._read(self._table.opened(), stream, (None, None), wanted)
        return found.to_pylist()[0] if len(found) else None

    def delete(self, stream: StreamId | str, event_id: str) -> bool:
        """Delete an event of a stream; whether it had one. Older versions of the table keep it."""
        with self._table.explained():
            wanted = f"stream = '{_parsed(stream)}' AND event_id = {_quoted(event_id)}"
            done = self._table.opened().delete(wanted)
        return bool(done["num_deleted_rows"])

    def events(
        self,
        spark: SparkSession,
        stream: StreamId | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: int | datetime | None = None,
    ) -> DataFrame:
        """The events as a DataFrame with the columns `COLUMNS`, in no order.

        Args:
            spark: a session, also of Spark Connect.
            stream: of this stream; None = of all.
            since, until: that occurred after this time, and before that one.
            as_of: as the table was at a version, or at a time.
        """
        table = self._table.opened(as_of)
        name = None if stream is None else str(_parsed(stream))
        paths = paths_with(table, name, (since, until))
        if not paths:
            return spark.createDataFrame([], COLUMNS)
        wanted = _wanted(name, since, until)
        frame = spark.createDataFrame([(path,) for path in paths], "path STRING").repartition(len(paths))
        return frame.mapInArrow(partial(_read_files, self._table, wanted), COLUMNS)

    def follow(self, spark: SparkSession, *, new: bool = False) -> DataFrame:
        """The events as a stream over the table's versions, with the columns `COLUMNS`.

        Written by `format("babelqueue")`, they make the store an outbox: what was appended is published.

        Args:
            spark: a session, also of Spark Connect.
            new: begin with what is appended from now on, rather than with all that is there.
        """
        self._table.opened()
        spark.dataSource.register(EventDataSource)
        options = {f"store.{name}": value for name, value in self._table.options.items()}
        return (
            spark.readStream.format(EventDataSource.name())
            .options(**options, location=self._table.location, new=str(new).lower())
            .load()
        )

    def _slice(
        self, table: Any, stream: StreamId, since: Cursor | datetime | None, count: int, *, forward: bool
    ) -> Slice:
        at = since.occurred_at if isinstance(since, Cursor) else since
        wanted = pc.field("stream") == str(stream)
        if since is not None:
            wanted &= _behind(since, forward=forward)
        found = self._read(table, str(stream), (at, None) if forward else (None, at), wanted)
        order = [(name, "ascending" if forward else "descending") for name, _ in ORDER]
        found = found.sort_by(order)
        return Slice(stream, found.slice(0, count), has_more=len(found) > count)

    def _read(self, table: Any, stream: str, bounds: tuple[Any, Any], wanted: pc.Expression) -> pa.Table:
        tables = list(self._table.read(paths_with(table, stream, bounds), wanted))
        return pa.concat_tables([SCHEMA.empty_table(), *tables])


def _parsed(stream: StreamId | str) -> StreamId:
    return stream if isinstance(stream, StreamId) else StreamId.parse(stream)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _cursor(event: pa.Table) -> Cursor:
    return Cursor(event["occurred_at"][0].as_py(), event["event_id"][0].as_py())


def _behind(since: Cursor | datetime, *, forward: bool) -> pc.Expression:
    beyond: Callable[..., pc.Expression] = pc.Expression.__gt__ if forward else pc.Expression.__lt__
    occurred = pc.field("occurred_at")
    if isinstance(since, datetime):
        return beyond(occurred, pa.scalar(since, TIMESTAMP))
    at = pa.scalar(since.occurred_at, TIMESTAMP)
    return beyond(occurred, at) | ((occurred == at) & beyond(pc.field("event_id"), pa.scalar(since.event_id)))


def _wanted(stream: str | None, since: datetime | None, until: datetime | None) -> pc.Expression | None:
    occurred = pc.field("occurred_at")
    conditions = [
        *([] if stream is None else [pc.field("stream") == stream]),
        *([] if since is None else [occurred > pa.scalar(since, TIMESTAMP)]),
        *([] if until is None else [occurred < pa.scalar(until, TIMESTAMP)]),
    ]
    return reduce(pc.Expression.__and__, conditions) if conditions else None


def _read_files(
    table: EventTable, wanted: pc.Expression | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for events in table.read(batch.column("path").to_pylist(), wanted):
            yield from events.to_batches()


def _write(table: EventTable, source: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition as one file, and tell of it."""
    context = TaskContext.get()
    assert context is not None, "events are written inside a Spark task"
    ids, row, parts = IdSource(f"{source} {context.partitionId()}"), 0, []
    for batch in batches:
        parts.append(_stored(batch, row, ids))
        row += batch.num_rows
    events = pa.concat_tables([SCHEMA.empty_table(), *parts])
    if len(events):
        file = table.write(events)
        yield pa.RecordBatch.from_pylist([vars(file)], schema=_FILES_ARROW)


def _stored(rows: pa.RecordBatch, first_row: int, ids: IdSource) -> pa.Table:
    """Rows with a column `_STREAM` as they are stored."""
    streams = rows.column(rows.schema.get_field_index(_STREAM)).cast(pa.string())
    for text in streams.unique().to_pylist():
        StreamId.parse(text or "")
    body = column_of(rows, "body")
    if body is None:
        queues = column_of(rows, "queue")
        given = streams if queues is None else pc.coalesce(queues.cast(pa.string()), streams)
        body = bodies(rows.drop_columns([_STREAM]), blocks_of(rows), given, first_row, ids)
    envelopes = decode(body.cast(pa.binary()))
    errors = envelopes.column("error")
    if errors.null_count < len(errors):
        row = pc.indices_nonzero(errors.is_valid())[0].as_py()
        reason = errors[row].as_py()
        raise BabelQueueError(
            f"row {first_row + row} is not an event (its body has the error {reason}): leave it out"
        )
    meta = envelopes.column("meta")
    columns = [streams, *(pc.struct_field(meta, name) for name in ("created_at", "id"))]
    return pa.Table.from_arrays([*columns, envelopes.column("job"), body.cast(pa.binary())], schema=SCHEMA)


def _events_of(stream: StreamId, events: Sequence[Mapping[str, Any]], last: Cursor | None) -> pa.Table:
    """Events as they are stored: now, in their order, and later than the last one."""
    texts = [_text(event.get("data")) for event in events]
    columns = {
        "job": pa.array([event.get("job") for event in events], pa.string()),
        "data": pa.array(texts, pa.string()),
        "trace_id": pa.array([event.get("trace_id") for event in events], pa.string()),
        _STREAM: pa.repeat(str(stream), len(events)),
    }
    rows = _stored(pa.RecordBatch.from_pydict(columns), 0, IdSource(uuid.uuid4().hex))
    now = datetime.fromtimestamp(time.time(), UTC)
    first = now if last is None else max(now, last.occurred_at + _MICROSECOND)
    times = pa.array([first + number * _MICROSECOND for number in range(len(events))], TIMESTAMP)
    return rows.set_column(1, SCHEMA.field("occurred_at"), times)


def _text(data: Any) -> str:
    return data if isinstance(data, str) else msgspec.json.encode(data).decode()
