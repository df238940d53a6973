"""The envelope as Arrow columns: the types that decode gives and encode takes.

They equal what Spark makes of the same columns (`to_arrow_schema`), so that a batch passes into Spark
without a cast.
"""

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")

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


def is_blank(text: str | None) -> bool:
    """Return whether there is no text, or nothing in it but blanks."""
    return not (text or "").strip(BLANKS)
