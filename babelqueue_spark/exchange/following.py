"""`format("babelqueue_events")`: the versions of an event store as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from babelqueue_spark.exchange.event_table import COLUMNS, EventTable

_STORE = "store."
_TASKS = 32


@dataclass
class Versions(InputPartition):
    """Tells one task to read what some versions of the table added.

    Attributes:
        first, last: versions, both of them read.
    """

    first: int
    last: int


class EventDataSource(DataSource):
    """Serves `EventStore.follow`."""

    @classmethod
    def name(cls) -> str:
        return "babelqueue_events"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        del schema
        # Spark's options know no upper case.
        storage = {
            name.removeprefix(_STORE): value
            for name, value in self.options.items()
            if name.startswith(_STORE)
        }
        table = EventTable(self.options["location"], storage)
        return EventStreamReader(table, new=self.options["new"] == "true")


class EventStreamReader(DataSourceStreamReader):
    """Offsets are versions of the table, so a replayed batch reads the same events."""

    def __init__(self, table: EventTable, *, new: bool) -> None:
        self._table = table
        self._new = new

    def initialOffset(self) -> dict[str, Any]:
        """Begin after the newest version, or after the one that made the table."""
        return {"version": self._table.opened().version() if self._new else 0}

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        return {"version": self._table.opened().version()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the versions among `_TASKS` tasks at most."""
        first, last = start["version"] + 1, end["version"]
        each = max(1, -(-(last - first + 1) // _TASKS))
        return [Versions(begin, min(begin + each - 1, last)) for begin in range(first, last + 1, each)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what each version added, in the order of streams and times."""
        assert isinstance(partition, Versions)
        yield from self._table.added(partition.first, partition.last)
