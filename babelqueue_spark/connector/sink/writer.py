"""The batch and stream writers: each task publishes its rows in chunks; a repeated task makes the same."""

from __future__ import annotations

import difflib
import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.message_log import MessageLog, message_log
from babelqueue_spark.connector.options import Options
from babelqueue_spark.connector.publishing import in_chunks, publish
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.payloads import check_payload_type
from babelqueue_spark.connector.rows.reading import arrow_fields
from babelqueue_spark.connector.rows.writing import COLUMNS, to_messages
from babelqueue_spark.envelope.scan import octets_of
from babelqueue_spark.errors import OptionError
from babelqueue_spark.forms import Form
from babelqueue_spark.tracing import with_traceparents

if TYPE_CHECKING:
    from babelqueue_spark.tracing.spans import Spans

_QUERY = "sql.streaming.queryId"


@dataclass
class Published(WriterCommitMessage):
    """How many messages one task put on the queues, without those that a former attempt had published."""

    messages: int


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Publishes micro-batches; a replay has the same ids, and is dropped where the broker can do that."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.txn_version is not None:
            raise OptionError("options 'txnAppId' and 'txnVersion' are for df.write: a stream has its own")
        check_columns(schema, options.form)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = _task()
        writer = f"{context.getLocalProperty(_QUERY)} {context.partitionId()}"
        stamp = IdSource(f"{_streaming(context)} {context.partitionId()}", writer)
        return Published(_publish(iterator, stamp, self._options))


class QueueWriter(DataSourceArrowWriter):
    """Publishes a DataFrame; a replay in foreachBatch, or of the same `txnVersion`, has the same ids."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a queue cannot be overwritten: use .mode('append')")
        check_columns(schema, options.form)
        self._options = options
        self._run = uuid.uuid4().hex
        app, version = options.txn_app_id, options.txn_version
        self._transaction = None if version is None else f"{app} {version}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = _task()
        repeatable = self._transaction or _streaming(context)
        stamp = IdSource(f"{repeatable or self._run} {context.partitionId()}")
        return Published(_publish(iterator, stamp, self._options, ids_by_content=repeatable is not None))


def check_columns(schema: StructType, form: Form) -> None:
    """Raise `OptionError` unless the columns can be written as messages of this form."""
    names = schema.fieldNames()
    for name in names:
        if name not in COLUMNS:
            nearest = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.6)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"a write takes {', '.join(COLUMNS)}"
            raise OptionError(f"column '{name}' cannot be written: {hint} (the payload belongs into 'data')")
    if form.needs_job and not {"job", "urn"} & set(names) and "dead_letter" not in names:
        raise OptionError(
            "a write needs a column 'job' (or 'urn'): the URN of the message; for bodies without an envelope "
            "set option 'envelope' to none"
        )
    if not {"data", "dead_letter", *(() if form.needs_job else ("body",))} & set(names):
        raise OptionError("a write needs a column 'data': JSON text, a struct or a map")
    try:
        payload = arrow_fields(StructType([field for field in schema if field.name == "data"]))
    except PySparkTypeError as error:
        raise OptionError(f"data has a type that has no form in JSON ({error}): cast it to STRING") from None
    for field in payload:
        check_payload_type(field.type)


def _publish(
    batches: Iterator[pa.RecordBatch], stamp: IdSource, options: Options, *, ids_by_content: bool = False
) -> int:
    """Publish rows in chunks, in order; each is encoded while the one before is on its way.

    Nothing is published after an error. What was encoded by then is dropped.
    """
    published = row = 0
    sent: Future[int] | None = None
    # The binding that publishes is busy while another answers what the next rows may hold.
    name = f"published-{hashlib.blake2b(stamp.text.encode(), digest_size=16).hexdigest()}"
    spans = None if options.tracing is None else options.tracing.spans(options.broker)
    with (
        spans or nullcontext(),
        options.binding() as binding,
        options.binding() as asked,
        message_log(options.message_log, name, binding, options.catalog) as lines,
        ThreadPoolExecutor(1, "publish") as thread,
        ExitStack() as stack,
    ):
        encode = partial(to_messages, options=options, binding=asked, dead_letters=True)
        if options.catalog is not None:
            batches = stack.enter_context(_checked_first(batches, lambda rows, row: encode(rows, row, stamp)))
        for chunk in in_chunks(batches, binding):
            of_content = IdSource(f"{stamp.text} {_fingerprint(chunk)}", stamp.writer)
            ids = of_content if ids_by_content else stamp
            encoded = encode(chunk, row, ids)
            published += sent.result() if sent else 0
            sent = thread.submit(_send, binding, encoded, of_content, row, lines, spans)
            row += chunk.num_rows
        return published + (sent.result() if sent else 0)


@contextmanager
def _checked_first(
    batches: Iterable[pa.RecordBatch], check: Callable[[pa.RecordBatch, int], object]
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Keep the batches in a file, and give them again once `check(batch, first_row)` has passed all."""
    with TemporaryFile() as file:
        writer, row = None, 0
        for batch in batches:
            check(batch, row)
            row += batch.num_rows
            writer = writer or pa.ipc.new_stream(file, batch.schema)
            writer.write_batch(batch)
        if writer is None:
            yield iter(())
            return
        writer.close()
        file.seek(0)
        yield iter(pa.ipc.open_stream(file))


def _send(
    binding: BaseBinding,
    encoded: dict[str, pa.RecordBatch],
    keys: IdSource,
    first_row: int,
    lines: MessageLog,
    spans: Spans | None,
) -> int:
    total = 0
    for queue, messages in encoded.items():
        sending: AbstractContextManager[None] = nullcontext()
        if spans is not None:
            messages, sends = with_traceparents(messages, queue, headers=binding.capabilities.headers)
            sending = spans.sending(sends)
        with sending:
            total += publish(binding, queue, messages, keys=keys, first_row=first_row, lines=lines)
    return total


def _fingerprint(chunk: pa.RecordBatch) -> str:
    """Digest the rows as given: an idempotency key must never stand for other rows than its own."""
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
    """Name query and batch of the micro-batch this task belongs to; None outside of one."""
    query = context.getLocalProperty(_QUERY)
    batch = context.getLocalProperty("streaming.sql.batchId")
    return f"{query} {batch}" if query and batch else None
