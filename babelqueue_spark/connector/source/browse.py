"""The batch reader: browses queues, and consumes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import binding_class
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.rows.reading import read_rows
from babelqueue_spark.connector.source.plan import QueueShare, check_no_offsets
from babelqueue_spark.errors import OptionError


class QueueReader(DataSourceReader):
    """Reads each queue in one partition, so that its order is kept."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if binding_class(options.broker).capabilities.browse == "none":
            raise OptionError(
                f"broker '{options.broker}' cannot be read without consuming: use spark.readStream"
            )
        check_no_offsets(options)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [QueueShare(queue) for queue in self._options.queue]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, QueueShare)
        queue = partition.queue
        with self._options.binding() as binding:
            browsed = ((queue, batch) for batch in binding.browse(queue))
            yield from read_rows(browsed, "browsed", uuid.uuid4().hex, binding, self._schema, self._options)
