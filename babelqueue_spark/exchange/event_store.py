"""Streams of events in a table of Delta Lake, which every PySpark and other programs read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from babelqueue_spark.envelope.columns import TIMESTAMP
from babelqueue_spark.errors import EventConflictError, EventStoreError, OptionError
from babelqueue_spark.exchange.event_rows import FILES, STREAM, events_of, write_rows
from babelqueue_spark.exchange.event_table import COLUMNS, SCHEMA, EventFile, EventTable, files_with
from babelqueue_spark.exchange.following import EventDataSource
from babelqueue_spark.exchange.replaying import Replay, Replayed
from babelqueue_spark.exchange.stream_ids import StreamId
from babelqueue_spark.worker.destinations import Pairs

_ATTEMPTS = 20


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
        has_more: whether the stream has more behind them, in that order.
        version: of the table that was read.
    """

    stream: StreamId
    events: pa.Table
    has_more: bool
    version: int

    @property
    def cursor(self) -> Cursor | None:
        """The place of the last of these events; None where there is none."""
        return _cursor(self.events.slice(len(self.events) - 1)) if len(self.events) else None


@dataclass(frozen=True)
class Description:
    """What an event store holds.

    Attributes:
        version: the newest one of its table.
        streams, events, files: how many there are.
        size: of the files, in bytes.
    """

    version: int
    streams: int
    events: int
    files: int
    size: int


class EventStore:
    """Events in streams, ordered by time and id, in a Delta table that is made where it is missing.

    Args:
        location: a directory, or the URL of an object store (`s3://bucket/path`).
        options: of the object store, by delta-rs's names (`aws_endpoint_url`); references are resolved.
            Credentials come from the provider's environment variables, as a journal's do.
    """

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self._table = EventTable(str(location), dict(options or {}))

    def exists(self) -> bool:
        """Return whether the table was made."""
        return self._table.exists()

    def create(self) -> None:
        """Make the table where it is missing; all that reads or writes does so too."""
        self._table.opened()

    def describe(self) -> Description:
        """Return what it holds. Reads the files that hold several streams."""
        table = self._table.opened()
        streams, events, size = set[str](), 0, 0
        files = files_with(table, None, (None, None)).to_pylist()
        for file in files:
            names, found = [file["first_stream"]], file["events"]
            if found is None or names != [file["last_stream"]]:
                each = self._table.streams(file["path"])
                names, found = each.unique().to_pylist(), len(each)
            streams.update(names)
            events, size = events + found, size + file["size"]
        return Description(table.version(), len(streams), events, len(files), size)

    def append(
        self, frame: DataFrame, stream: StreamId | str | Column, txn: tuple[str, int] | None = None
    ) -> int:
        """Append the rows of a DataFrame as events, all or none; returns how many.

        Executors write files, and the driver commits them at once.

        Args:
            frame: columns of a write (`job`, `data`, …), or a column `body` that is kept byte for byte; and
                `occurred_at`, a TIMESTAMP to the microsecond, by default the `created_at` of the body.
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
        rows = frame.withColumn(STREAM, column.cast("string"))
        source = " ".join(map(str, txn)) if txn else uuid.uuid4().hex
        found = rows.mapInArrow(partial(write_rows, self._table, source), FILES).collect()
        files = [EventFile(*row) for row in found]
        if not (files or txn) or not self._table.commit(files, txn):
            return 0
        return sum(file.events for file in files)

    def put(
        self,
        stream: StreamId | str,
        events: Sequence[Mapping[str, Any]],
        expected: Slice | str | None = None,
    ) -> list[str]:
        """Append events from this process; returns their ids.

        Their times are later than those of all events in the stream, unless they name one.

        Args:
            stream: of all of them.
            events: of each `job` and `data` (an object, or its JSON text), and if need be `trace_id`, `meta`
                (keys that the envelope does not set), `id`, `occurred_at` (a datetime with a time zone).
            expected: a slice to which nothing was added since it was read; or the id of the event that was
                added last, empty where the stream must have none; None where that does not matter. Of several
                writers that expect the same one succeeds. A slice is exact. An id is not, once `optimize` or
                `delete` has rewritten files: then the last one in time counts.

        Raises:
            EventConflictError: another event was added, or the stream has one of these ids.
            EventStoreError: the table cannot be written.
            OptionError: an event has a key that is unknown, or a value that JSON cannot carry.
        """
        stream = _parsed(stream)
        if not events:
            return []
        for _ in range(_ATTEMPTS):
            table = self._table.opened()
            self._check_expected(table, stream, expected)
            self._check_new(table, stream, [event["id"] for event in events if event.get("id")])
            last = self._slice(table, stream, since=None, count=1, forward=False).cursor
            rows = events_of(stream, events, last.occurred_at if last else None)
            file = self._table.write(rows)
            if self._table.commit_at(table, [file]) or self._has(stream, rows.slice(0, 1)):
                return rows["event_id"].to_pylist()  # type: ignore[no-any-return]
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
        """Return an event of a stream as a dict of the columns of a slice; None without such an event."""
        return self._get(self._table.opened(), _parsed(stream), event_id)

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
        """Return the events as a DataFrame with the columns `COLUMNS`, in no order.

        Args:
            spark: a session, also of Spark Connect.
            stream: of this stream; None = of all.
            since, until: that occurred after this time, and before that one.
            as_of: as the table was at a version, or at a time.
        """
        table = self._table.opened(as_of)
        name = None if stream is None else str(_parsed(stream))
        paths = files_with(table, name, (since, until))["path"].to_pylist()
        if not paths:
            return spark.createDataFrame([], COLUMNS)
        wanted = _wanted(name, since, until)
        frame = spark.createDataFrame([(path,) for path in paths], "path STRING").repartition(len(paths))
        return frame.mapInArrow(partial(_read_files, self._table, wanted), COLUMNS)

    def follow(self, spark: SparkSession, *, new: bool = False) -> DataFrame:
        """Return the events as a stream over the table's versions, with the columns `COLUMNS`.

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

    def tail(self, stream: StreamId | str | None = None, count: int = 10) -> Iterator[pa.Table]:
        """Yield the last events, in the order of time; then, at each step, what was appended since.

        Without Spark, and without an end.

        Args:
            stream: of this stream; None = of all.
            count: most events of the first step.
        """
        name = None if stream is None else str(_parsed(stream))
        wanted = _wanted(name, None, None)
        table = self._table.opened()
        version = table.version()
        last = self._table.first(table, name, (None, None), wanted, count, forward=False)
        yield last.take(pa.array(range(len(last))[::-1], pa.int64()))
        while True:
            newest = self._table.version()
            added = pa.Table.from_batches(self._table.added(version + 1, newest), SCHEMA)
            version = newest
            yield added if wanted is None else added.filter(wanted)

    def replay(
        self,
        spark: SparkSession,
        options: Mapping[str, Any],
        routes: Pairs | None = None,
        *,
        stream: StreamId | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        txn: str | None = None,
        bypass: bool = True,
        dry_run: bool = False,
    ) -> Replayed:
        """Publish events again, those of a stream in their order, with the `meta.id` and trace they have.

        On brokers with keys, the key is the stream. What detects duplicates may drop an event that was
        published a short time ago.

        Args:
            spark: a session, also of Spark Connect.
            options: those of a write.
            routes: URN patterns and queues, as of an `Exchange`; each event goes to all that match. None = to
                the option `queue`.
            stream: of this stream; None = of all.
            since, until: that occurred after this time, and before that one.
            txn: a name. A repeat with the same name and arguments replays the store as it was at the first
                time, and publishes what is missing, on brokers that keep idempotency keys. The table
                remembers the name. None = a repeat publishes all again.
            bypass: mark messages with the header `bq-replay-bypass`, which asks handlers for no effects
                outside.
            dry_run: publish nothing.

        Raises:
            OptionError: an option or a route is invalid, or the broker keeps no headers for `bypass`.
            BrokerError: the broker failed; a repeat continues.
        """
        replay = Replay(options, routes, bypass=bypass)
        application = None if txn is None else f"replay {txn}"
        version = self._table.version(application, pin=not dry_run)
        events = self.events(spark, stream, since, until, as_of=version)
        counts = replay.counts(events)
        if not dry_run:
            replay.publish(events, None if application is None else (application, version))
        unrouted = counts.pop(None, 0)
        return Replayed(version, dict(sorted(counts.items())), unrouted)  # type: ignore[arg-type]

    def _slice(
        self, table: Any, stream: StreamId, since: Cursor | datetime | None, count: int, *, forward: bool
    ) -> Slice:
        at = since.occurred_at if isinstance(since, Cursor) else since
        wanted = pc.field("stream") == str(stream)
        if since is not None:
            wanted &= _behind(since, forward=forward)
        bounds = (at, None) if forward else (None, at)
        found = self._table.first(table, str(stream), bounds, wanted, count + 1, forward=forward)
        return Slice(stream, found.slice(0, count), has_more=len(found) > count, version=table.version())

    def _get(self, table: Any, stream: StreamId, event_id: str) -> dict[str, Any] | None:
        wanted = (pc.field("stream") == str(stream)) & (pc.field("event_id") == event_id)
        found = self._table.first(table, str(stream), (None, None), wanted, 1)
        return found.to_pylist()[0] if len(found) else None

    def _has(self, stream: StreamId, event: pa.Table) -> bool:
        """Return whether this event is there, and not another with its id."""
        [expected] = event.to_pylist()
        found = self.get(stream, expected["event_id"])
        return found is not None and found["body"] == expected["body"]

    def _check_new(self, table: Any, stream: StreamId, ids: Sequence[str]) -> None:
        for event_id in ids:
            if self._get(table, stream, event_id) is not None:
                raise EventConflictError(
                    f"stream {stream} of {self._table.location} has an event {event_id}: give another one "
                    "another id"
                )

    def _check_expected(self, table: Any, stream: StreamId, expected: Slice | str | None) -> None:
        """Raise `EventConflictError` where an event was added that was not expected."""
        if expected is None:
            return
        if isinstance(expected, Slice):
            known, added = "", self._added_since(table, stream, expected)
        else:
            known, added = expected, self._table.added_last(table, str(stream))
        found = added["event_id"][-1].as_py() if len(added) else ""
        if found != known:
            raise EventConflictError(
                f"stream {stream} of {self._table.location}: the event that was added last is "
                f"{found or 'none'}, which was not expected: read it, decide again, and expect that slice "
                "(it is exact, an id is not where files were rewritten)"
            )

    def _added_since(self, table: Any, stream: StreamId, seen: Slice) -> pa.Table:
        if seen.stream != stream:
            raise OptionError(f"expected is a slice of {seen.stream}: read one of {stream}")
        return self._table.added_since(table, seen.version, str(stream))


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
