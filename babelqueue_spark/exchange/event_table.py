"""The Delta table of an event store: files of executors, and commits of the driver."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from babelqueue_spark.errors import EventConflictError, EventStoreError, JournalError, OptionError
from babelqueue_spark.secrets import resolve
from babelqueue_spark.storage import Store, is_object_store, login_in, open_store

SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("occurred_at", pa.timestamp("us", "UTC")),
        pa.field("event_id", pa.string()),
        pa.field("job", pa.string()),
        pa.field("body", pa.binary()),
    ]
)
"""What is stored: the body as it is, and what events are found by."""
COLUMNS = "stream STRING, occurred_at TIMESTAMP, event_id STRING, job STRING, body BINARY"
"""The same in a DataFrame; `bq.decode("body")` gives the rest of the envelope."""
ORDER = [("stream", "ascending"), ("occurred_at", "ascending"), ("event_id", "ascending")]
_LOGIN = re.compile(r"//[^/@\s]*:[^/@\s]*@")
_UNUSABLE = re.compile(r"[\[\]^|\\]|%[0-9a-fA-F]{2}")
"""The library panics over these in a folder's name, or reads another folder than it writes."""
_CHANGE, _VERSION = "_change_type", "_commit_version"
_CHANGES = SCHEMA.append(pa.field(_CHANGE, pa.string())).append(pa.field(_VERSION, pa.uint64()))
_OF_FILES = {
    "path": "path",
    "size_bytes": "size",
    "num_records": "events",
    "modification_time": "added",
    "min.stream": "first_stream",
    "max.stream": "last_stream",
    "min.occurred_at": "low",
    "max.occurred_at": "high",
}
_BOUNDED = ("stream", "occurred_at", "event_id", "job")
_GONE = re.compile("not found|Invalid table version")
"""What the library says of files, or of a log, that were deleted."""
_REWRITTEN = "part-"
"""How the files begin that `optimize` and `delete` write."""
_PROPERTIES = {"delta.enableChangeDataFeed": "true"}
"""So that what a version added can be read, whatever has been done to its files since."""


@dataclass(frozen=True)
class EventFile:
    """A file of events that is not in the table yet."""

    path: str
    size: int
    events: int
    stats: str


@dataclass(frozen=True)
class EventTable:
    """A Delta table at a location; nothing is kept open, so that executors may have it too.

    Attributes:
        location: a directory, or the URL of an object store.
        options: of the object store, by delta-rs's names; a value may be a reference (`env:NAME`).
    """

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if is_object_store(self.location) and (login_in(self.location) or "?" in self.location):
            raise OptionError(
                "event store: a location takes no login and no parameters: give them as options, by "
                "reference (env:NAME), or in the provider's environment variables"
            )
        if not is_object_store(self.location):
            open_store(self.location, "event store")  # refuses other schemes
            if _UNUSABLE.search(str(self._folder)):
                raise OptionError(
                    f"event store {self.location}: its path has one of [ ] ^ | \\ or a percent escape (%20), "
                    "which Delta Lake's library cannot use in names: rename the folder"
                )

    def opened(self, version: int | datetime | None = None) -> DeltaTable:
        """Return the table as it is now, or was: made where it is missing."""
        with self.explained():
            if version is None:
                return self._created()
            table = DeltaTable(self._url, storage_options=self._storage)
            table.load_as_version(version)
            return table

    def _created(self) -> DeltaTable:
        try:
            return DeltaTable.create(
                self._url,
                schema=deltalake.Schema.from_arrow(SCHEMA),
                mode="ignore",
                configuration=_PROPERTIES,
                storage_options=self._storage,
            )
        except CommitFailedError:  # of several who make it at once, another was first
            return DeltaTable(self._url, storage_options=self._storage)

    def write(self, events: pa.Table) -> EventFile:
        """Write a file of events, as they are ordered; no reader sees it before it is committed."""
        path = f"{uuid.uuid4().hex}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(events, buffer, compression="zstd")
        content = buffer.getvalue().to_pybytes()
        with self.explained():
            self._store.create(path, content)
        return EventFile(path, len(content), len(events), _stats(events))

    def commit(self, files: Iterable[EventFile], transaction: tuple[str, int] | None) -> bool:
        """Make files part of the table; False where it has had the transaction before.

        Raises:
            EventStoreError: the table cannot be written.
        """
        table = self.opened()
        if self.has(table, transaction):
            return False
        transactions = [Transaction(*transaction)] if transaction else None
        try:
            _commit(table, files, CommitProperties(app_transactions=transactions))
        except CommitFailedError as error:
            if self.has(self.opened(), transaction):  # of two committers of one transaction, the other
                return False
            raise self._error(error) from None
        except DeltaError as error:
            raise self._error(error) from None
        return True

    def commit_at(
        self, table: DeltaTable, files: Iterable[EventFile], transaction: tuple[str, int] | None = None
    ) -> bool:
        """Make files part of the table as it was opened; False where it is not the same any more.

        Where the answer of a commit was lost, False may also say that all that is in the table.

        Raises:
            EventStoreError: the table cannot be written.
        """
        version = table.version()  # a commit that fails may update it
        transactions = [Transaction(*transaction)] if transaction else None
        try:
            _commit(table, files, CommitProperties(max_commit_retries=0, app_transactions=transactions))
        except (DeltaError, OSError) as error:
            if self.opened().version() == version:
                raise self._error(error) from None
            return False
        return True

    def version(self, application: str | None = None, *, pin: bool = False) -> int:
        """Return the newest version; for an application, the one it has pinned, or pins now.

        The table remembers it, as a transaction of the application's.

        Raises:
            EventStoreError: the table cannot be read, or written.
        """
        while True:
            table = self.opened()
            version = table.version()
            known = None if application is None else table.transaction_version(application)
            if known is not None:
                return known
            if application is None or not pin or self.commit_at(table, [], (application, version)):
                return version

    def exists(self) -> bool:
        with self.explained():
            return DeltaTable.is_deltatable(self._url, storage_options=self._storage)

    @staticmethod
    def has(table: DeltaTable, transaction: tuple[str, int] | None) -> bool:
        """Return whether a transaction is in the table, or a later one of the same application."""
        if transaction is None:
            return False
        application, version = transaction
        known = table.transaction_version(application)
        return known is not None and known >= version

    def read(self, paths: Iterable[str], wanted: pc.Expression | None) -> Iterator[pa.Table]:
        """Yield the events of files that an expression is true of, file by file."""
        with self.explained():
            for path in paths:
                events = pq.read_table(self._source(path), columns=SCHEMA.names).cast(SCHEMA)
                yield events if wanted is None else events.filter(wanted)

    def first(
        self,
        table: DeltaTable,
        stream: str | None,
        bounds: tuple[Any, Any],
        wanted: pc.Expression | None,
        count: int,
        *,
        forward: bool = True,
    ) -> pa.Table:
        """Return the first events that an expression is true of, in the order of time, or backwards.

        Args:
            table: as it was opened.
            stream, bounds: what the expression says, for `files_with`.
            wanted: the expression; None = all.
            count: most events.
            forward: in the order of time, or backwards.
        """
        direction = "ascending" if forward else "descending"
        order = [(name, direction) for name in ("occurred_at", "event_id", "stream")]
        files = files_with(table, stream, bounds)
        edge = "low" if forward else "high"
        files = files.take(pc.array_sort_indices(files[edge], order=direction, null_placement="at_start"))
        found = SCHEMA.empty_table()
        if not count:
            return found
        for path, reaches in zip(files["path"].to_pylist(), files[edge].to_pylist(), strict=True):
            if len(found) == count and reaches is not None:
                last = found["occurred_at"][-1].as_py()
                if last < reaches if forward else last > reaches:
                    break
            [events] = self.read([path], wanted)
            found = pa.concat_tables([found, events]).sort_by(order).slice(0, count)
        return found

    def added_last(self, table: DeltaTable, stream: str) -> pa.Table:
        """Return the events of a stream that its last commit added, in the order in which it was given them.

        Files that were rewritten have no such order: they are one commit, in the order of time.
        """
        files = files_with(table, stream, (None, None)).sort_by([("added", "descending")])
        found, moment, is_given = SCHEMA.empty_table(), None, True
        for path, added in zip(files["path"].to_pylist(), files["added"].to_pylist(), strict=True):
            if len(found) and added != moment:
                break
            [events] = self.read([path], pc.field("stream") == stream)
            is_given = not (len(found) or path.startswith(_REWRITTEN))
            found, moment = pa.concat_tables([found, events]), added
        return found if is_given else found.sort_by(ORDER)

    def streams(self, path: str) -> pa.ChunkedArray:
        """Return the stream of each event in a file."""
        with self.explained():
            return pq.read_table(self._source(path), columns=["stream"])["stream"].cast(pa.string())

    def added(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield what the versions from `first` to `last` added, version by version."""
        with self.explained():
            table = self.opened()
            for version in range(first, last + 1):
                yield from _inserted(table, version, version).to_batches()

    def added_since(self, table: DeltaTable, version: int, stream: str) -> pa.Table:
        """Return what was added to a stream since a version, at one read.

        Raises:
            EventConflictError: nobody knows any more, as files of those versions are deleted.
        """
        try:
            with self.explained():
                return _inserted(table, version + 1, table.version(), f"stream = '{stream}'")
        except EventStoreError as error:
            if not _GONE.search(error.text):
                raise
            raise EventConflictError(
                f"event store {self.location}: the slice is of version {version}, and files that were added "
                "since are deleted (vacuum): read it again, decide again, and expect that slice"
            ) from None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the library's errors into ours."""
        try:
            yield
        except JournalError as error:
            raise EventStoreError(error.text) from None
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> EventStoreError:
        text = _LOGIN.sub("//", " ".join(str(error).split()))
        return EventStoreError(f"event store {self.location}: {text}")

    def _source(self, path: str) -> Any:
        if not is_object_store(self.location):
            return self._folder / path
        content = self._store.read(path)
        if content is None:
            raise FileNotFoundError(f"file {path} is not there: restore it, or read an older version")
        return pa.BufferReader(content)

    @property
    def _folder(self) -> Path:
        """The folder of a location that is a path, or a URL, whose percent escapes stand for characters."""
        scheme, found, path = self.location.partition("file:")
        return Path(f"/{unquote(path).lstrip('/')}" if found and not scheme else self.location).absolute()

    @property
    def _url(self) -> str:
        return self.location if is_object_store(self.location) else self._folder.as_uri()

    @property
    def _store(self) -> Store:
        place = self.location if is_object_store(self.location) else str(self._folder)
        return open_store(place, "event store", self._storage)

    @property
    def _storage(self) -> dict[str, str]:
        return {name: resolve(value, name) for name, value in self.options.items()}


def _inserted(table: DeltaTable, first: int, last: int, wanted: str | None = None) -> pa.Table:
    """Return what the versions from `first` to `last` added, in their order."""
    changes = pa.table(table.load_cdf(first, last, predicate=wanted, allow_out_of_range=True))
    changes = changes.select(_CHANGES.names).cast(_CHANGES)
    inserts = changes.filter(pc.equal(changes[_CHANGE], "insert"))
    return inserts.sort_by([(_VERSION, "ascending"), *ORDER]).select(SCHEMA.names)


def _commit(table: DeltaTable, files: Iterable[EventFile], properties: CommitProperties) -> None:
    """Make files part of a table that was opened, with a later time than those that are there."""
    there = pa.table(table.get_add_actions())["modification_time"]
    now = max(int(time.time() * 1000), (pc.max(there).cast(pa.int64()).as_py() or 0) + 1)
    actions: list[Any] = [
        AddAction(file.path, file.size, {}, modification_time=now, data_change=True, stats=file.stats)
        for file in files
    ]
    table.create_write_transaction(
        actions, "append", deltalake.Schema.from_arrow(SCHEMA), commit_properties=properties
    )


def files_with(table: DeltaTable, stream: str | None, bounds: tuple[Any, Any]) -> pa.Table:
    """Return the files that may hold events of a stream (None = any) between two times (None = no bound).

    Returns:
        `path`, `size` in bytes, `events`, `added` (later files have later times), and of what the file holds
        the first and the last stream (`first_stream`, `last_stream`) and time (`low`, `high`); null where the
        table does not say.
    """
    found = pa.table(table.get_add_actions(flatten=True))
    found = found.select([*_OF_FILES]).rename_columns([*_OF_FILES.values()])
    found = found.set_column(found.schema.get_field_index("high"), "high", _not_cut(found["high"]))
    wanted = pa.repeat(pa.scalar(True), found.num_rows)
    since, until = bounds
    for name, value, keeps in (
        ("first_stream", stream, pc.less_equal),
        ("last_stream", stream, pc.greater_equal),
        ("high", since, pc.greater_equal),
        ("low", until, pc.less_equal),
    ):
        if value is not None and found.num_rows:
            column = found.column(name)
            wanted = pc.and_(wanted, pc.fill_null(keeps(column, pa.scalar(value, column.type)), True))
    return found.filter(wanted)


def _not_cut(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the bounds of files: writers of Delta, such as `optimize`, cut their microseconds off."""
    return pc.add(times, pa.scalar(timedelta(microseconds=999), pa.duration("us")))


def _stats(events: pa.Table) -> str:
    bounds = {name: pc.min_max(events[name]).as_py() for name in _BOUNDED}
    return json.dumps(
        {
            "numRecords": len(events),
            "minValues": {name: _text(bound["min"]) for name, bound in bounds.items()},
            "maxValues": {name: _text(bound["max"]) for name, bound in bounds.items()},
            "nullCount": dict.fromkeys(SCHEMA.names, 0),
        }
    )


def _text(value: str | datetime) -> str:
    return value if isinstance(value, str) else value.isoformat(timespec="microseconds")
