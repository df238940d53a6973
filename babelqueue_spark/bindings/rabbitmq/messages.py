"""Envelopes as AMQP messages: the contract's properties and headers, and what a reader makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pika
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import deliveries, envelopes_of
from babelqueue_spark.bindings.headers import (
    CONTENT_TYPE,
    ID,
    JOB,
    TRACE_ID,
    take_properties,
    with_properties,
)

_SHORT_STRING = 255
"""Bytes that `type`, `correlation_id`, `message_id` and the names of headers may have."""

_NAMING = {"type": JOB, "correlation_id": TRACE_ID, "message_id": ID, "content_type": CONTENT_TYPE}
"""Property → header, of messages whose body does not name them."""
_OTHERS = ("reply_to", "expiration", "priority", "user_id")
"""Properties that neither repeat the body nor have a column; headers under `amqp.<name>`."""


def properties(messages: pa.RecordBatch, *, native: bool = False) -> Iterator[pika.BasicProperties]:
    """Return the properties of `OUTGOING` messages: what the body says, where its type is right.

    Where asked, a header gives the content type.
    """
    envelopes = envelopes_of(messages)
    meta = envelopes.column("meta")
    names = [envelopes.column("job"), envelopes.column("trace_id"), pc.struct_field(meta, "id")]
    version = pc.struct_field(meta, "schema_version")
    attempts = envelopes.column("attempts")
    columns = (
        reduce(pc.or_, [pc.is_valid(column) for column in (*names, version, attempts)]),
        *map(_short, names),
        version,
        pc.struct_field(meta, "lang"),
        pc.fill_null(attempts, 0),
        messages.column("headers"),
    )
    for known, job, trace_id, message_id, version, lang, attempts, headers in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        given = dict(headers or ())
        kind = take_properties(given, job, trace_id, message_id) if native else None
        contract = {"x-schema-version": version, "x-source-lang": lang, "x-attempts": attempts}
        yield pika.BasicProperties(
            content_type=kind or "application/json",
            content_encoding="utf-8" if known else None,
            delivery_mode=2,
            type=job,
            correlation_id=trace_id,
            message_id=message_id,
            app_id="babelqueue" if version is not None else None,
            headers=_table(given, contract if known else {}),
        )


Headers = tuple[tuple[str, str], ...]

#: A delivery: its tag on the channel on which it came, then body, headers, id, count, redelivered and
#: enqueued_at of `DELIVERIES`. Plain tuples of plain values, which the collector lets go of
#: after a few visits; walking thousands of pika's objects or of named tuples costs a tenth of a claim.
Message = tuple[int, bytes, Headers | None, str | None, int | None, bool, int | None]


def message(method: Any, given: pika.BasicProperties, body: bytes, *, native: bool = False) -> Message:
    """Return a message as pika delivers it; where asked, headers show the properties that name it."""
    return (
        method.delivery_tag,
        body,
        _headers(given, _NAMING if native else {}),
        None if given.message_id is None else _text(given.message_id),
        _count(method.redelivered, given.headers),
        method.redelivered,
        None if given.timestamp is None else given.timestamp * 1000,
    )


def received(messages: Sequence[Message], channel: str) -> pa.RecordBatch:
    """`DELIVERIES` of messages; their receipts are tags on the channel of this name."""
    tags, bodies, headers, ids, counts, redelivered, times = zip(*messages, strict=True)
    return deliveries(
        len(messages),
        body=bodies,
        headers=headers,
        id=ids,
        count=counts,
        redelivered=redelivered,
        enqueued_at=times,
        receipt=[f"{channel}:{tag}".encode() for tag in tags],
    )


def _short(texts: pa.StringArray) -> pa.StringArray:
    """Return those that fit into a short string; null for the others."""
    return pc.if_else(pc.less_equal(pc.binary_length(texts), _SHORT_STRING), texts, None)


def _table(headers: Mapping[str, str], contract: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {
        name: value
        for name, value in headers.items()
        if name and value and len(name.encode()) <= _SHORT_STRING
    }
    table.update((name, value) for name, value in contract.items() if value is not None)
    if "laravel" in table and contract:
        table["laravel"] = {"attempts": contract["x-attempts"]}
    return table


def _headers(given: pika.BasicProperties, naming: Mapping[str, str]) -> Headers | None:
    table = given.headers or {}
    found = [(_text(name), _text(value)) for name, value in table.items() if value is not None]
    for name in _OTHERS:
        value = getattr(given, name)
        if value is not None:
            found.append((f"amqp.{name}", str(value)))
    if naming:
        named = {header: getattr(given, name) for name, header in naming.items()}
        found = with_properties(found, {name: value and _text(value) for name, value in named.items()})
    return tuple(found) or None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (dict, list)):
        try:
            return json.dumps(_plain(value), ensure_ascii=False, default=_text)
        except RecursionError:
            return "(nested too deep)"
    return str(value)


def _plain(value: Any) -> Any:
    """Tables within tables, whose names pika leaves as bytes where they are no UTF-8, as JSON takes them."""
    if isinstance(value, dict):
        return {_text(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _count(redelivered: bool, table: Mapping[str, Any] | None) -> int | None:
    """Quorum queues count deliveries; a classic queue only knows the first one."""
    before = (table or {}).get("x-delivery-count")
    if isinstance(before, int) and not isinstance(before, bool) and before >= 0:
        return before + 1
    return None if redelivered else 1
