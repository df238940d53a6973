"""CloudEvents 1.0: structured JSON, and binary mode, where headers have the attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.headers import CONTENT_TYPE, ID
from babelqueue_spark.envelope import META_TYPE, Reason
from babelqueue_spark.envelope.columns import BLANKS, TIMESTAMP, envelope_schema, meta_column
from babelqueue_spark.envelope.encoder import EnvelopeError
from babelqueue_spark.envelope.jsontext import with_room
from babelqueue_spark.envelope.typed import typed
from babelqueue_spark.forms.carried import CarriedForm, Opened, unwrapped, with_headers
from babelqueue_spark.forms.contract import STRING, Carrier, Parts
from babelqueue_spark.forms.plain import json_texts, named

PREFIXES = ("ce_", "cloudEvents:", "cloudEvents_", "ce-")
"""How attributes are named in headers: of Kafka, of AMQP (two ways), of HTTP."""
STRUCTURED = "application/cloudevents+json; charset=UTF-8"
_NAMED = ("type", "time")
"""Attributes that a handler finds elsewhere."""
_DATA = ("data", "data_base64")
_CORE = ("specversion", "id", "source", "type", "time", "datacontenttype", "traceid")
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = msgspec.json.Decoder(str).decode


class _Event(NamedTuple):
    """One event.

    Attributes:
        attributes: all but the data, as JSON texts.
        data: a JSON text; None where there is none.
        error: a code of `Reason`.
    """

    attributes: Mapping[str, str] = {}
    data: str | None = None
    error: str | None = None


class CloudEvents(CarriedForm):
    """Events: `type` is the job, `id` is `meta.id`, other attributes are in `meta.extra`.

    Both modes are read; structured JSON is written.
    """

    name = "cloudevents"
    needs_job = True

    def decode(
        self, messages: pa.RecordBatch, *, allow_list_data: bool = False, data_type: pa.DataType = STRING
    ) -> pa.RecordBatch:
        del allow_list_data
        found = Opened(messages)
        texts = json_texts(found.bodies).to_pylist()
        events = [
            _event(text, dict(given or ()), empty)
            for text, given, empty in zip(
                texts, found.headers.to_pylist(), pc.equal(found.bodies, b"").to_pylist(), strict=True
            )
        ]
        data = pa.array([event.data for event in events], STRING)
        extra = [
            [(name, text) for name, text in event.attributes.items() if name not in ("id", *_NAMED)]
            for event in events
        ]
        meta = {
            "id": _texts(events, "id"),
            "created_at": typed(
                pa.array([event.attributes.get("time") for event in events], STRING), TIMESTAMP
            ),
            "extra": pa.array(extra, META_TYPE.field("extra").type),
        }
        columns = {
            "job": _texts(events, "type"),
            "trace_id": pa.array([_trace(event.attributes) for event in events], STRING),
            "data": data if data_type == STRING else typed(data, data_type),
            "meta": meta_column(meta, len(events)),
            "attempts": pc.fill_null(found.attempts, 0),
            "dead_letter": found.dead_letters(),
            "error": pa.array([event.error for event in events], STRING),
        }
        return pa.RecordBatch.from_arrays([*columns.values()], schema=envelope_schema(data_type))

    def _encoded(self, messages: pa.RecordBatch, headers: pa.MapArray, carrier: Carrier) -> Parts:
        rows = _checked_attributes(messages)
        texts = messages.column("data").to_pylist()
        bodies = pa.array(
            [_structured(row, data) for row, data in zip(rows, texts, strict=True)], pa.binary()
        )
        if not carrier.names:
            return Parts(bodies, headers)
        kind = pa.array([STRUCTURED] * len(rows), STRING)
        return Parts(bodies, with_headers(named(headers, messages), {CONTENT_TYPE: kind}))

    def content(self, body: bytes, headers: Any) -> tuple[Any, dict[str, Any]]:
        inner = unwrapped(body)
        event = _event(inner.decode() or None, dict(headers), not inner)
        data = None if event.data is None else with_room(json.loads, event.data)
        return data, {name: json.loads(text) for name, text in event.attributes.items() if name not in _NAMED}


class BinaryEvents(CloudEvents):
    """Events in binary mode: the body is the data. Both modes are read."""

    name = "cloudevents-binary"

    def _encoded(self, messages: pa.RecordBatch, headers: pa.MapArray, carrier: Carrier) -> Parts:
        if not carrier.names:
            raise EnvelopeError(0, "headers", "are missing on this broker: write envelope=cloudevents")
        rows = _checked_attributes(messages)
        names = dict.fromkeys(name for row in rows for name in row if name != "datacontenttype")
        columns = {
            f"{carrier.event_prefix}{name}": pa.array([_header(row.get(name)) for row in rows], STRING)
            for name in names
        }
        ids = pc.struct_field(messages.column("meta"), "id")
        kinds = pa.array([_header(row.get("datacontenttype")) for row in rows], STRING)
        bodies = pc.fill_null(messages.column("data"), "").cast(pa.binary())
        return Parts(bodies, with_headers(headers, {**columns, ID: ids, CONTENT_TYPE: kinds}))


def _event(text: str | None, headers: Mapping[str, str], empty: bool) -> _Event:
    """Read an event; `text` is the body where that is JSON."""
    prefix = next((each for each in PREFIXES if headers.get(f"{each}specversion")), None)
    if prefix is not None:
        named = {
            name.removeprefix(prefix): json.dumps(value)
            for name, value in headers.items()
            if name.startswith(prefix) and value is not None
        }
        return _checked(named, text, None if text is not None or empty else Reason.INVALID_DATA)
    try:
        members = with_room(_object, (text or "").encode())
    except msgspec.MsgspecError:
        return _Event(error=str(Reason.POISON))
    data = members.pop("data", members.pop("data_base64", None))
    attributes = {name: bytes(value).decode() for name, value in members.items() if value != b"null"}
    return _checked(attributes, None if data is None else bytes(data).decode(), None)


def _checked(attributes: Mapping[str, str], data: str | None, error: str | None) -> _Event:
    if _text_of(attributes, "specversion") != "1.0":
        error = Reason.UNSUPPORTED_SCHEMA_VERSION if "specversion" in attributes else Reason.POISON
    elif not (_text_of(attributes, "type") or "").strip(BLANKS):
        error = Reason.MISSING_URN
    elif not _text_of(attributes, "id") or not _text_of(attributes, "source"):
        error = Reason.MISSING_META
    return _Event(attributes, data, None if error is None else str(error))


def _text_of(attributes: Mapping[str, str], name: str) -> str | None:
    try:
        return _string(attributes[name])
    except (KeyError, msgspec.MsgspecError):
        return None


def _texts(events: Sequence[_Event], name: str) -> pa.StringArray:
    return pa.array([_text_of(event.attributes, name) for event in events], STRING)


def _trace(attributes: Mapping[str, str]) -> str | None:
    """Return the extension `traceid`, which we write, or the trace of `traceparent`."""
    own, parts = _text_of(attributes, "traceid"), (_text_of(attributes, "traceparent") or "").split("-")
    return own or (parts[1] if len(parts) == 4 else None)


def _checked_attributes(messages: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the attributes of events; `EnvelopeError` for the first whose data or attributes are no JSON."""
    data = messages.column("data")
    broken = pc.and_(data.is_valid(), json_texts(data.cast(pa.binary())).is_null())
    if pc.any(broken).as_py():
        raise EnvelopeError(pc.index(broken, True).as_py(), "data", "is not one JSON value")
    rows = messages.select(["job", "trace_id", "meta"]).to_pylist()
    return [_attributes(row, number) for number, row in enumerate(rows)]


def _attributes(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the attributes of an event: texts, or what else `meta.extra` has as JSON."""
    job, meta = row["job"], row["meta"]
    if not (job or "").strip(BLANKS):
        raise EnvelopeError(number, "job", "is missing")
    extra = {name: _attribute(text, name, number) for name, text in meta["extra"] or () if name not in _DATA}
    if not isinstance(extra.get("source"), str) or not extra["source"]:
        extra.pop("source", None)
    made: datetime = meta["created_at"]
    known = {
        "specversion": "1.0",
        "id": meta["id"],
        "source": extra.pop("source", f"/queues/{meta['queue']}"),
        "type": job,
        "time": made.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "datacontenttype": extra.pop("datacontenttype", "application/json"),
    }
    own = row["trace_id"]
    trace = {} if not own or own in str(extra.get("traceparent")).split("-") else {"traceid": own}
    return {**known, **trace, **{name: value for name, value in extra.items() if name not in _CORE}}


def _attribute(text: str, name: str, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise EnvelopeError(number, f"meta.extra {name}", "is not JSON") from None


def _structured(attributes: Mapping[str, Any], data: str | None) -> bytes:
    return msgspec.json.encode(
        {**attributes, **({} if data is None else {"data": msgspec.Raw(data.encode())})}
    )


def _header(value: Any) -> str | None:
    """Return an attribute as a header has it: a text without quotes, any other value as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
