"""The batch and stream writers: each task publishes its rows in chunks that a repeated task repeats."""

from __future__ import annotations

import difflib
import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from babelqueue_spark.envelope.scan import octets_of
from babelqueue_spark.errors import OptionError
from babelqueue_spark.options import Options
from babelqueue_spark.rows.ids import IdSource
from babelqueue_spark.rows.writing import COLUMNS, to_messages

_QUERY = "sql.streaming.queryId"


@dataclass
class Published(WriterCommitMessage):
    """What one task put on the queues; rows a former attempt had published already are not counted."""

    messages: int


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Publishes micro-batches; a replayed batch carries the same ids and, where possible, no repeats."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.txn_version is not None:
            raise OptionError("options 'txnAppId' and 'txnVersion' are for df.write: a stream has its own")
        check_columns(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one partition; returns when the broker has confirmed them."""
        context = _task()
        writer = f"{context.getLocalProperty(_QUERY)} {context.partitionId()}"
        stamp = IdSource(f"{_streaming(context)} {context.partitionId()}", writer)
        return Published(_publish(iterator, stamp, self._options))


class QueueWriter(DataSourceArrowWriter):
    """Publishes a DataFrame once; in foreachBatch, or with `txnVersion`, with ids that a replay repeats."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a queue cannot be overwritten: use .mode('append')")
        check_columns(schema)
        self._options = options
        self._run = uuid.uuid4().hex
        app, version = options.txn_app_id, options.txn_version
        self._transaction = None if version is None else f"{app} {version}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of one partition; returns when the broker has confirmed them."""
        context = _task()
        repeatable = self._transaction or _streaming(context)
        stamp = IdSource(f"{repeatable or self._run} {context.partitionId()}")
        return Published(_publish(iterator, stamp, self._options, ids_by_content=repeatable is not None))


def check_columns(schema: StructType) -> None:
    """`OptionError` unless the columns can be written."""
    names = schema.fieldNames()
    for name in names:
        if name not in COLUMNS:
            nearest = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.6)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"a write takes {', '.join(COLUMNS)}"
            raise OptionError(f"column '{name}' cannot be written: {hint} (the payload belongs into 'data')")
    if not {"job", "urn"} & set(names) and "dead_letter" not in names:
        raise OptionError("a write needs a column 'job' (or 'urn'): the URN of the message")
    if "data" not in names and "dead_letter" not in names:
        raise OptionError("a write needs a column 'data': JSON text, a struct or a map")


def _publish(
    batches: Iterator[pa.RecordBatch], stamp: IdSource, options: Options, *, ids_by_content: bool = False
) -> int:
    published = 0
    row = 0
    with options.binding() as binding:
        can_mark = binding.capabilities.publish_once
        for chunk in _chunks(batches, binding.capabilities.publish_batch):
            of_content = IdSource(f"{stamp.text} {_fingerprint(chunk)}", stamp.writer)
            ids = of_content if ids_by_content else stamp
            for queue, messages in to_messages(chunk, row, ids, options, binding).items():
                marker = of_content.marker(queue, row) if can_mark else None
                published += binding.publish(queue, messages, idempotency_key=marker)
            row += chunk.num_rows
    return published


def _chunks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `size`, however they were cut, so that a marker means the same rows."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= size:
            table = pa.Table.from_batches(waiting)
            whole = rows - rows % size
            for first in range(0, whole, size):
                yield _one_batch(table.slice(first, size))
            waiting = table.slice(whole).to_batches()
            rows -= whole
    if rows:
        yield _one_batch(pa.Table.from_batches(waiting))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    combined: pa.RecordBatch = table.combine_chunks().to_batches()[0]
    return combined


def _fingerprint(chunk: pa.RecordBatch) -> str:
    """A digest of the rows as given: a marker must never stand for other rows than it was made of."""
    digest = hashlib.blake2b(f"{chunk.num_rows} {chunk.schema}".encode(), digest_size=16)
    for column in chunk.columns:
        if pa.types.is_string(column.type) and not column.null_count:
            octets, bounds = octets_of(column)
            digest.update(np.diff(bounds).tobytes())
            digest.update(octets[bounds[0] : bounds[-1]].data)
        else:
            digest.update(repr(column.to_pylist()).encode())
    return digest.hexdigest()


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer runs inside a Spark task"
    return context


def _streaming(context: TaskContext) -> str | None:
    """Query and batch of the micro-batch this task belongs to, or None outside of one."""
    query = context.getLocalProperty(_QUERY)
    batch = context.getLocalProperty("streaming.sql.batchId")
    return f"{query} {batch}" if query and batch else None
