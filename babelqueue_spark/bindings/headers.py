"""What the contract shows of an envelope beside its body."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import ENVELOPE_COLUMN, milliseconds
from babelqueue_spark.envelope.columns import is_blank, meta_column

VERSION = "bq-schema-version"
JOB, TRACE_ID, ID, ATTEMPTS = "bq-job", "bq-trace-id", "bq-message-id", "bq-attempts"
LETTER = "x-dead-letter"
"""The header of a dead letter whose body has no block: the block as JSON. One, since SQS carries ten."""
CONTENT_TYPE = "content-type"
_OTHER_COUNTS = ("x-attempts", "bq_attempts")
NAMES = (JOB, TRACE_ID, ID)
"""Headers that name a message whose body does not."""
_WHOLE = re.compile("0|[1-9][0-9]{0,17}")
Text = TypeVar("Text", str, str | None)


class UnsendableError(Exception):
    """A message that a broker cannot carry, and what to do about it."""


class Shown(NamedTuple):
    """What the contract shows of an envelope beside it; None where a field has not its type."""

    job: str | None
    trace_id: str | None
    message_id: str | None
    lang: str | None
    schema_version: int | None
    created_at: int | None
    attempts: int | None

    def label(self, row: int) -> str:
        """Return what errors call the message."""
        return f"row {row}" + (f" (meta.id {self.message_id})" if self.message_id else "")

    def name(self) -> str | None:
        """Return `meta.id`; a retry has a name of its own, since a broker would drop it as a repeat."""
        retried = self.message_id and (self.attempts or 0) > 0
        return f"{self.message_id}-{self.attempts}" if retried else self.message_id


def beside(
    given: Mapping[str, Text], contract: Mapping[str, str], version: str = VERSION
) -> dict[str, Text | str]:
    """Return what travels beside a body: the contract's properties win over those given, but not the version.

    A given version names how to read the body: a message that was refused for it stays so.
    """
    return {**given, **contract, **({version: given[version]} if not is_blank(given.get(version)) else {})}


def is_whole_number(text: str) -> bool:
    """Return whether a number that a text stands for would be written the same way again."""
    return _WHOLE.fullmatch(text) is not None


def shown(envelopes: pa.RecordBatch) -> Iterator[Shown]:
    """Return what the contract shows of each decoded envelope."""
    meta = envelopes.column("meta")
    columns = (
        envelopes.column("job"),
        envelopes.column("trace_id"),
        *(pc.struct_field(meta, name) for name in ("id", "lang", "schema_version")),
        milliseconds(pc.struct_field(meta, "created_at")),
        envelopes.column("attempts"),
    )
    return map(Shown._make, zip(*(column.to_pylist() for column in columns), strict=True))


def header(headers: pa.MapArray, name: str) -> pa.StringArray:
    """Return the header of this name, null where it is missing or empty."""
    found = pc.map_lookup(headers, name, "first")
    return pc.if_else(pc.equal(found, ""), None, found)


def without_headers(headers: pa.MapArray, names: Collection[str]) -> pa.MapArray:
    """Take headers away."""
    if headers.null_count == len(headers):
        return headers
    kept = ([pair for pair in given or () if pair[0] not in names] or None for given in headers.to_pylist())
    return pa.array(list(kept), headers.type)


def named_by_headers(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Give `OUTGOING` messages an `ENVELOPE_COLUMN` of their headers, unless they have one."""
    if ENVELOPE_COLUMN.name in messages.schema.names:
        return messages
    headers = messages.column("headers")
    columns = [
        header(headers, JOB),
        header(headers, TRACE_ID),
        meta_column({"id": header(headers, ID)}, len(messages)),
        whole_numbers(header(headers, ATTEMPTS)),
    ]
    named = pa.StructArray.from_arrays(columns, fields=list(ENVELOPE_COLUMN.type))
    return messages.append_column(ENVELOPE_COLUMN, named)


def take_properties(given: dict[str, Text], *properties: str | None) -> Text | None:
    """Take away the headers that go as properties, and former counts; return the content type.

    `properties` are those of `NAMES`; one that cannot be carried leaves its header.
    """
    for name, value in zip(NAMES, properties, strict=True):
        if value is not None:
            given.pop(name, None)
    for name in _OTHER_COUNTS:
        given.pop(name, None)
    return given.pop(CONTENT_TYPE, None)


def with_properties(
    given: Sequence[tuple[str, Any]], properties: Mapping[str, str | None]
) -> list[tuple[str, Any]]:
    """Return headers, in which what the broker's properties say wins."""
    named = {name: value for name, value in properties.items() if value}
    return [*((name, value) for name, value in given if name not in named), *named.items()]


def projections(envelopes: pa.RecordBatch) -> Iterator[dict[str, str]]:
    """Yield what the contract shows of each decoded envelope, without what it lacks."""
    meta = envelopes.column("meta")
    contract = {
        "bq-job": envelopes.column("job"),
        "bq-trace-id": envelopes.column("trace_id"),
        "bq-message-id": pc.struct_field(meta, "id"),
        VERSION: pc.struct_field(meta, "schema_version").cast(pa.string()),
        "bq-source-lang": pc.struct_field(meta, "lang"),
        "bq-attempts": envelopes.column("attempts").cast(pa.string()),
    }
    for values in zip(*(column.to_pylist() for column in contract.values()), strict=True):
        yield {name: value for name, value in zip(contract, values, strict=True) if value}


def whole_numbers(texts: pa.StringArray) -> pa.Int32Array:
    """Parse texts as numbers: null where one has more than ASCII digits, or goes beyond 32 bits."""
    digits = pc.ascii_ltrim(pc.if_else(pc.match_substring_regex(texts, "^[0-9]+$"), texts, None), "0")
    numbers = pc.if_else(pc.less_equal(pc.binary_length(digits), 10), digits, None)
    numbers = pc.if_else(pc.equal(numbers, ""), "0", numbers).cast(pa.int64())
    return pc.if_else(pc.less(numbers, 2**31), numbers, None).cast(pa.int32())
