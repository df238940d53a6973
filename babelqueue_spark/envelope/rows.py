"""The fields of one body as plain values, and those of many as columns."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Struct

from babelqueue_spark.envelope.columns import (
    DEAD_LETTER_TYPE,
    ENVELOPE_SCHEMA,
    INT32,
    META_TYPE,
    timestamps,
    within,
)
from babelqueue_spark.envelope.reasons import verdict

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Meta(Struct, gc=False):
    """The core keys of `meta`; times are epoch milliseconds, None is "not there" or null."""

    id: str | None = None
    queue: str | None = None
    lang: str | None = None
    schema_version: Int64 | None = None
    created_at: Int64 | None = None


class DeadLetter(Struct, gc=False, forbid_unknown_fields=True):
    """The keys of a dead letter block; times are epoch milliseconds, None is "not there" or null."""

    reason: str | None = None
    error: str | None = None
    exception: str | None = None
    failed_at: Int64 | None = None
    original_queue: str | None = None
    attempts: Int64 | None = None
    lang: str | None = None


class Row(NamedTuple):
    """The fields of one body; None is "not there", null, or not of its type."""

    job: str | None = None
    trace_id: str | None = None
    data: str | None = None
    meta: Meta | None = None
    extra: Sequence[tuple[str, str]] = ()
    attempts: int | None = None
    dead_letter: DeadLetter | None = None
    poison: bool = False
    ignored: tuple[str, ...] = ()
    """JSON pointers of the keys that an envelope must not have"""


def batch_of(rows: Sequence[Row]) -> Any:
    """Return the RecordBatch of ENVELOPE_SCHEMA that holds `rows`, at least one."""
    job, trace_id, data, meta, extra, attempts, dead_letter, poison, _ = zip(*rows, strict=True)
    columns = {
        "job": pa.array(job, pa.string()),
        "trace_id": pa.array(trace_id, pa.string()),
        "data": pa.array(data, pa.string()),
        "meta": _meta_column(meta, extra),
        "attempts": _saturated(attempts),
        "dead_letter": dead_letter_column(dead_letter),
    }
    error = verdict(columns, pa.array(poison))
    return pa.RecordBatch.from_arrays([*columns.values(), error], schema=ENVELOPE_SCHEMA)


def dead_letter_column(blocks: Sequence[DeadLetter | None]) -> Any:
    """Return the `dead_letter` column of these blocks; counts saturate, times out of range are null."""
    if not any(blocks):
        return pa.nulls(len(blocks), DEAD_LETTER_TYPE)
    filled = [block or DeadLetter() for block in blocks]
    columns = [
        pa.array([block.reason for block in filled], pa.string()),
        pa.array([block.error for block in filled], pa.string()),
        pa.array([block.exception for block in filled], pa.string()),
        timestamps([block.failed_at for block in filled]),
        pa.array([block.original_queue for block in filled], pa.string()),
        _saturated([block.attempts for block in filled]),
        pa.array([block.lang for block in filled], pa.string()),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(DEAD_LETTER_TYPE), mask=_absent(blocks))


def _meta_column(metas: Sequence[Meta | None], extra: Sequence[Sequence[tuple[str, str]]]) -> Any:
    filled = [meta or Meta() for meta in metas]
    columns = [
        pa.array([meta.id for meta in filled], pa.string()),
        pa.array([meta.queue for meta in filled], pa.string()),
        pa.array([meta.lang for meta in filled], pa.string()),
        pa.array([within(INT32, meta.schema_version) for meta in filled], pa.int32()),
        timestamps([meta.created_at for meta in filled]),
        pa.array(extra, META_TYPE.field("extra").type),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(META_TYPE), mask=_absent(metas))


def _absent(values: Sequence[Any]) -> Any:
    return pa.array([value is None for value in values])


def _saturated(values: Sequence[int | None]) -> Any:
    low, high = INT32[0], INT32[-1]
    return pa.array([None if value is None else min(max(value, low), high) for value in values], pa.int32())
