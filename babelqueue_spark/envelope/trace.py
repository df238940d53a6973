"""The trace that a message belongs to, as W3C trace context names it."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TRACE_TYPE = pa.struct(
    [
        ("source", pa.string()),
        ("trace_id", pa.string()),
        ("parent_span_id", pa.string()),
        ("flags", pa.string()),
    ]
)
"""`source`: `traceparent` or `trace_id`. `trace_id`: 32 hex digits, or what else the envelope has, without
hyphens. `parent_span_id` (16 hex digits) and `flags` (2) are null without a traceparent."""

_TRACEPARENT = (
    r"^(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})"
    r"-(?P<parent_span_id>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})$"
)
_NOTHING = r"^(ff-.*|..-0{32}-.*|.{36}0{16}-..)$"


def trace_context(trace_ids: Any, traceparents: Any) -> Any:
    """Whose trace each message continues, a struct array of TRACE_TYPE.

    `trace_ids` are those of the envelopes, `traceparents` the headers of that name that came beside them,
    both string arrays. A header that is missing or malformed (W3C trace context, version 00) is passed
    over. Null where there is neither.
    """
    found = pc.extract_regex(traceparents, _TRACEPARENT)
    invalid = pc.fill_null(pc.match_substring_regex(traceparents, _NOTHING), True)
    given = pc.and_not(pc.is_valid(found), invalid)
    bare = pc.replace_substring(trace_ids, "-", "")
    columns = [
        pc.if_else(given, "traceparent", "trace_id"),
        pc.if_else(given, pc.struct_field(found, "trace_id"), bare),
        pc.if_else(given, pc.struct_field(found, "parent_span_id"), None),
        pc.if_else(given, pc.struct_field(found, "flags"), None),
    ]
    absent = pc.and_not(pc.is_null(bare), given)
    return pa.StructArray.from_arrays(columns, fields=list(TRACE_TYPE), mask=absent)
