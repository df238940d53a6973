"""`format("babelqueue")`: how Spark gets readers and writers."""

import babelqueue_spark.needs_spark  # noqa: F401

from typing import Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import Binding, LogBinding, binding_class
from babelqueue_spark.connector.options import Options, read_options, write_options
from babelqueue_spark.connector.rows.reading import check_schema, schema_of_read
from babelqueue_spark.connector.sink.writer import QueueStreamWriter, QueueWriter
from babelqueue_spark.connector.source.browse import QueueReader
from babelqueue_spark.connector.source.log import LogReader, LogStreamReader
from babelqueue_spark.connector.source.stream import QueueStreamReader
from babelqueue_spark.errors import BabelQueueError, OptionError


class BabelQueueDataSource(DataSource):
    """Serves `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` for message queues."""

    @classmethod
    def name(cls) -> str:
        """Return the short name for `format(…)`."""
        return "babelqueue"

    def schema(self) -> StructType:
        """Return all columns of a read; `.schema(…)` on the reader may ask for fewer."""
        return schema_of_read(self._read_options().catalog)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Browse queues without consuming, or read a range of a log."""
        options = self._read_options()
        check_schema(schema, options.catalog)
        return LogReader(options, schema) if _is_log(options) else QueueReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Consume queues through the journal, or follow logs by their offsets."""
        try:
            options = self._read_options()
            check_schema(schema, options.catalog)
            return (
                LogStreamReader(options, schema) if _is_log(options) else QueueStreamReader(options, schema)
            )
        except BabelQueueError as error:
            return _RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Publish a DataFrame once."""
        return QueueWriter(self._write_options(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Publish each micro-batch, a replayed one under the same ids."""
        del overwrite
        return QueueStreamWriter(self._write_options(), schema)

    def _read_options(self) -> Options:
        options = read_options(self.options)
        if not issubclass(binding_class(options.broker), (Binding, LogBinding)):
            raise OptionError(
                f"broker '{options.broker}' takes messages and gives none: read what it delivers, where it "
                "delivers it"
            )
        options.check()
        return options

    def _write_options(self) -> Options:
        options = write_options(self.options)
        options.check()
        return options


def _is_log(options: Options) -> bool:
    return issubclass(binding_class(options.broker), LogBinding)


class _RefusedReader(DataSourceStreamReader):
    """Raises an error as soon as Spark asks it for anything.

    What `streamReader` raises itself, Spark's runner buries under an error of its own.
    """

    def __init__(self, error: BabelQueueError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset: Any = _refuse
    latestOffset: Any = _refuse
    partitions: Any = _refuse
    read: Any = _refuse
