"""The contract's properties as text, as Pulsar and Kafka have them beside a body."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.envelope.columns import is_blank

VERSION = "bq-schema-version"
_WHOLE = re.compile("0|[1-9][0-9]{0,17}")
Text = TypeVar("Text", str, str | None)


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
