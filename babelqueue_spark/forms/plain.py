"""Bodies without an envelope: any JSON value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.headers import ID, JOB, NAMES, TRACE_ID, header
from babelqueue_spark.envelope import Reason
from babelqueue_spark.envelope.columns import envelope_schema, meta_column
from babelqueue_spark.envelope.encoder import EnvelopeError
from babelqueue_spark.envelope.jsontext import FINITE, MAX_DEPTH, is_utf8, with_room
from babelqueue_spark.envelope.outline import too_deep
from babelqueue_spark.envelope.scan import beyond_limits, no_values
from babelqueue_spark.envelope.typed import typed
from babelqueue_spark.forms.carried import CarriedForm, Opened, unwrapped, with_headers
from babelqueue_spark.forms.contract import STRING, Carrier, Parts


@dataclass(frozen=True)
class JobSource:
    """Where a message without an envelope names its `job`.

    Attributes:
        kind: a header, a member of the body, or nowhere: all have the same.
        name: of the header or of the member, or what all have.
    """

    kind: Literal["header", "field", "constant"]
    name: str

    @classmethod
    def of(cls, text: str) -> JobSource:
        """Parse `header:type`, `field:event`, or a constant."""
        kind, colon, name = text.strip().partition(":")
        if colon and kind == "header" and name:
            return cls("header", name)
        if colon and kind == "field" and name:
            return cls("field", name)
        if not text.strip() or kind in ("header", "headers", "field", "fields"):
            raise ValueError("'header:NAME', 'field:NAME', or a name for all messages")
        return cls("constant", text.strip())


class PlainForm(CarriedForm):
    """The body is the payload. Its `data` is its text, where that is one JSON value.

    Args:
        job: where messages name their `job`; None = in the broker's own metadata.
    """

    name = "none"

    def __init__(self, job: JobSource | None = None) -> None:
        self._job = job

    def decode(
        self, messages: pa.RecordBatch, *, allow_list_data: bool = False, data_type: pa.DataType = STRING
    ) -> pa.RecordBatch:
        del allow_list_data
        found = Opened(messages)
        data = json_texts(found.bodies)
        ids = {"id": header(found.headers, ID)}
        columns = {
            "job": self._jobs(found, data),
            "trace_id": header(found.headers, TRACE_ID),
            "data": data if data_type == STRING else typed(data, data_type),
            "meta": meta_column(ids, len(data)),
            "attempts": pc.fill_null(found.attempts, 0),
            "dead_letter": found.dead_letters(),
            "error": pc.if_else(data.is_null(), str(Reason.INVALID_DATA), None),
        }
        return pa.RecordBatch.from_arrays([*columns.values()], schema=envelope_schema(data_type))

    def _encoded(self, messages: pa.RecordBatch, headers: pa.MapArray, carrier: Carrier) -> Parts:
        bodies = pc.coalesce(messages.column("data").cast(pa.binary()), messages.column("body"))
        if bodies.null_count:
            raise EnvelopeError(
                pc.index(bodies.is_null(), True).as_py(), "data", "is missing, and so is body"
            )
        return Parts(bodies, named(headers, messages) if carrier.names else headers)

    def content(self, body: bytes, headers: Any) -> tuple[Any, dict[str, Any]]:
        return with_room(json.loads, unwrapped(body)), {"id": dict(headers).get(ID)}

    def _jobs(self, found: Opened, data: pa.StringArray) -> pa.StringArray:
        if self._job is None:
            return header(found.headers, JOB)
        if self._job.kind == "header":
            return header(found.headers, self._job.name)
        if self._job.kind == "field":
            return typed(data, pa.struct([(self._job.name, STRING)])).field(0)
        return pa.array([self._job.name] * len(data), STRING)


def named(headers: pa.MapArray, messages: pa.RecordBatch) -> pa.MapArray:
    """Set the headers that name messages; brokers with properties of their own send those."""
    ids = pc.struct_field(messages.column("meta"), "id")
    return with_headers(
        headers, dict(zip(NAMES, (messages.column("job"), messages.column("trace_id"), ids), strict=True))
    )


def json_texts(bodies: pa.BinaryArray) -> pa.StringArray:
    """Return bodies as texts, null where one is not one JSON value within the limits of an envelope."""
    filled = bodies.fill_null(b"")
    doubtful = {*no_values(filled), *beyond_limits(filled, MAX_DEPTH), *_not_containers(filled)}
    refused = {row for row in doubtful if not _is_sound(filled[row].as_py())}
    try:
        texts = filled.cast(STRING)
    except pa.ArrowInvalid:
        refused |= {row for row, body in enumerate(filled.to_pylist()) if not is_utf8(body)}
        texts = None
    if not refused and texts is not None:
        return texts
    sound = pa.array([row not in refused for row in range(len(filled))], pa.bool_())
    return pc.if_else(sound, filled, None).cast(STRING)


def _not_containers(bodies: pa.BinaryArray) -> set[int]:
    """Return the rows that begin with neither a brace nor a bracket: a number may end them."""
    firsts = pc.binary_slice(bodies, 0, 1)
    return {*pc.indices_nonzero(pc.invert(pc.is_in(firsts, pa.array([b"{", b"["])))).to_pylist()}


def _is_sound(body: bytes) -> bool:
    if too_deep(body, MAX_DEPTH):
        return False
    try:
        with_room(FINITE.decode, body.decode())
    except ValueError:
        return False
    return True
