"""The rows of a write as a value: each column is read once, in the type that an envelope has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import HEADERS
from babelqueue_spark.connector.rows.languages import large_numbers_as_texts
from babelqueue_spark.connector.rows.payloads import texts_of_payloads
from babelqueue_spark.envelope import DEAD_LETTER_TYPE, META_TYPE
from babelqueue_spark.envelope.columns import BLANKS, TIMESTAMP
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.forms import ENVELOPES, Form

_MOST_ATTEMPTS = 2**31 - 1


@dataclass(frozen=True)
class WriteRows:
    """The rows of a write; what has no column is null.

    Attributes:
        batch: the columns as they were given.
        first: number of the first row within its task.
        names: what errors call each row; None = its number.
        form: of the messages.
        quotes_large_numbers: whether `data` is to have integers beyond 2^53 - 1 as strings.
    """

    batch: pa.RecordBatch
    first: int = 0
    names: Sequence[str] | None = None
    form: Form = ENVELOPES
    quotes_large_numbers: bool = False

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def name(self, row: int) -> str:
        return f"row {self.first + row}" if self.names is None else self.names[row]

    def first_name(self, where: pa.BooleanArray) -> str:
        return self.name(pc.index(where, True).as_py())

    @cached_property
    def job(self) -> pa.StringArray:
        """The URN, without the blanks around it."""
        return pc.ascii_trim(pc.coalesce(self.texts("job"), self.texts("urn")), characters=BLANKS)

    @cached_property
    def data(self) -> pa.StringArray:
        column = self.column("data")
        if column is None or pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = self.texts("data")
        else:
            texts = texts_of_payloads(column, self.first)
        return large_numbers_as_texts(texts) if self.quotes_large_numbers else texts

    @cached_property
    def attempts(self) -> pa.Int32Array:
        """The attempts; raises `BabelQueueError` for a number beyond 32 bits."""
        column = self.column("attempts")
        if column is None:
            return pa.nulls(len(self), pa.int32())
        try:
            return column.cast(pa.int32())
        except pa.ArrowInvalid:
            beyond = [
                value is not None and not 0 <= int(value) <= _MOST_ATTEMPTS for value in column.to_pylist()
            ]
            row = beyond.index(True)
            raise BabelQueueError(
                f"{self.name(row)} has {column[row]} attempts, but they are from 0 to {_MOST_ATTEMPTS}"
            ) from None

    @cached_property
    def queue(self) -> pa.StringArray:
        """The queue that a row names, null where that is empty."""
        return not_empty(self.texts("queue"))

    @cached_property
    def block(self) -> pa.StructArray:
        column, fields = self.column("dead_letter"), list(DEAD_LETTER_TYPE)
        if column is None:
            return pa.nulls(len(self), DEAD_LETTER_TYPE)
        children = [child_of(column, field.name, field.type) for field in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())

    @cached_property
    def body(self) -> pa.BinaryArray:
        """The body that a row was read with."""
        column = self.column("body")
        return pa.nulls(len(self), pa.binary()) if column is None else column.cast(pa.binary())

    @cached_property
    def received(self) -> pa.RecordBatch:
        """What dead letters said when they were read."""
        read = [pc.if_else(self.block.is_valid(), self.body, None), self.headers]
        return self.form.decode(pa.RecordBatch.from_arrays(read, ["body", "headers"]))

    @cached_property
    def headers(self) -> pa.MapArray:
        column = self.column("headers")
        return pa.nulls(len(self), HEADERS) if column is None else column.cast(HEADERS)

    def meta(self, name: str) -> pa.Array:
        column, kind = self.column("meta"), META_TYPE.field(name).type
        return pa.nulls(len(self), kind) if column is None else child_of(column, name, kind)

    def column(self, name: str) -> pa.Array | None:
        """Return a column as it was given, or None where there is no such column."""
        index = self.batch.schema.get_field_index(name)
        return self.batch.column(index) if index >= 0 else None

    def texts(self, name: str) -> pa.StringArray:
        column = self.column(name)
        return pa.nulls(len(self), pa.string()) if column is None else column.cast(pa.string())


def child_of(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    """Return a field of a column as `kind`, null where there is no such field."""
    if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
        return pa.nulls(len(column), kind)
    field = pc.struct_field(column, name)
    return moments_of(field) if pa.types.is_timestamp(kind) else field.cast(kind)


def moments_of(column: pa.Array) -> pa.TimestampArray:
    """Return a column as timestamps; whole numbers are milliseconds since 1970, as an envelope has them."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    return column.cast(TIMESTAMP)


def not_empty(texts: Any) -> Any:
    """Texts, null where they are empty."""
    return pc.if_else(pc.equal(texts, ""), None, texts)
