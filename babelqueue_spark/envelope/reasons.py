"""Why a body is refused: the reason codes of the `error` column and the verdict over decoded columns."""

from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.envelope.columns import BLANKS, SCHEMA_VERSION


class Reason(StrEnum):
    """A code of the `error` column, in the order of the checks; the last one needs a catalog."""

    POISON = "poison"
    MISSING_URN = "missing_urn"
    MISSING_META = "missing_meta"
    UNSUPPORTED_SCHEMA_VERSION = "unsupported_schema_version"
    INVALID_DATA = "invalid_data"
    MISSING_TRACE_ID = "missing_trace_id"
    INVALID_ATTEMPTS = "invalid_attempts"
    INVALID_PAYLOAD = "invalid_payload"


def verdict(columns: dict[str, Any], poison: Any) -> Any:
    """Return the `error` column of decoded `columns` (name to Arrow array); null = accepted.

    `poison` is a boolean array, true for the rows whose body is no envelope at all.
    """
    version = pc.struct_field(columns["meta"], "schema_version")
    failures = {
        Reason.POISON: poison,
        Reason.MISSING_URN: is_blank(columns["job"]),
        Reason.MISSING_META: pc.is_null(columns["meta"]),
        Reason.UNSUPPORTED_SCHEMA_VERSION: pc.fill_null(pc.not_equal(version, SCHEMA_VERSION), True),
        Reason.INVALID_DATA: pc.is_null(columns["data"]),
        Reason.MISSING_TRACE_ID: is_blank(columns["trace_id"]),
        Reason.INVALID_ATTEMPTS: pc.is_null(columns["attempts"]),
    }
    error = pa.nulls(len(poison), pa.string())
    for reason, failed in reversed(failures.items()):
        if pc.any(failed).as_py():
            error = pc.if_else(failed, str(reason), error)
    return error


def is_blank(column: Any) -> Any:
    """Return whether each string of `column` is null, empty or nothing but the blanks of the contract."""
    trimmed = pc.ascii_trim(column, characters=BLANKS)
    return pc.fill_null(pc.equal(pc.binary_length(trimmed), 0), True)
