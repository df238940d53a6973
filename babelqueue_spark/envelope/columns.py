"""The envelope as Arrow columns: the types that decode gives and encode takes.

They equal what Spark makes of the same columns (`to_arrow_schema`), so that a batch passes into Spark
without a cast.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

TIMESTAMP = pa.timestamp("us", tz="UTC")
INT32 = range(-(2**31), 2**31)
#: The years 1 to 9999, the timestamps of Spark and Python.
_TIMESTAMP_MS = range(-62_135_596_800_000, 253_402_300_800_000)

META_TYPE = pa.struct(
    [
        ("id", pa.string()),
        ("queue", pa.string()),
        ("lang", pa.string()),
        ("schema_version", pa.int32()),
        ("created_at", TIMESTAMP),
        ("extra", pa.map_(pa.string(), pa.string())),
    ]
)

DEAD_LETTER_TYPE = pa.struct(
    [
        ("reason", pa.string()),
        ("error", pa.string()),
        ("exception", pa.string()),
        ("failed_at", TIMESTAMP),
        ("original_queue", pa.string()),
        ("attempts", pa.int32()),
        ("lang", pa.string()),
    ]
)

ENVELOPE_SCHEMA = pa.schema(
    [
        ("job", pa.string()),
        ("trace_id", pa.string()),
        ("data", pa.string()),
        ("meta", META_TYPE),
        ("attempts", pa.int32()),
        ("dead_letter", DEAD_LETTER_TYPE),
        ("error", pa.string()),
    ]
)


def envelope_schema(data: pa.DataType) -> pa.Schema:
    """ENVELOPE_SCHEMA with `data` of this type."""
    return ENVELOPE_SCHEMA.set(ENVELOPE_SCHEMA.get_field_index("data"), pa.field("data", data))


SCHEMA_VERSION = 1
#: The keys of `meta` that have a column of their own.
CORE_META_KEYS = frozenset({"id", "queue", "lang", "schema_version", "created_at"})
#: Keys of early drafts: read past, never written.
FORBIDDEN_META_KEYS = frozenset({"max_retries", "attempts", "source", "ts"})
#: The only blanks of the contract. Unicode spaces are text.
BLANKS = " \t\n\v\f\r"


def timestamps(milliseconds: Sequence[int | None]) -> pa.TimestampArray:
    """Return the times since 1970; null beyond the years 1 to 9999."""
    bounded = pa.array([within(_TIMESTAMP_MS, value) for value in milliseconds], pa.int64())
    return pc.multiply(bounded, 1000).cast(TIMESTAMP)


def meta_column(fields: Mapping[str, pa.Array], rows: int) -> pa.StructArray:
    """Return `meta` of these fields; what is left out is null."""
    columns = [
        fields[field.name] if field.name in fields else pa.nulls(rows, field.type) for field in META_TYPE
    ]
    return pa.StructArray.from_arrays(columns, fields=list(META_TYPE))


def within(limits: range, value: int | None) -> int | None:
    """Return the number; None beyond the limits."""
    return value if value is not None and value in limits else None


def is_blank(text: str | None) -> bool:
    """Return whether there is no text, or nothing in it but blanks."""
    return not (text or "").strip(BLANKS)
