"""Bodies, rows and blocks to test the codec with."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from babelqueue_spark.envelope import DEAD_LETTER_TYPE, decode

META: dict[str, Any] = {
    "id": "f1e2d3c4-b5a6-4789-90ab-cdef01234567",
    "queue": "orders",
    "lang": "php",
    "schema_version": 1,
    "created_at": 1749132727000,
}
ENVELOPE: dict[str, Any] = {
    "job": "urn:babel:orders:created",
    "trace_id": "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b",
    "data": {"order_id": 1042, "amount": 99.9},
    "meta": META,
    "attempts": 0,
}


def compact(value: Any) -> str:
    """JSON text as the SDKs write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def body(**changes: Any) -> bytes:
    """A canonical body with some members replaced; `...` takes a member out."""
    members = {**ENVELOPE, **changes}
    return compact({key: value for key, value in members.items() if value is not ...}).encode()


def texts(**changes: str) -> bytes:
    """A canonical body with the JSON text of some members replaced or added."""
    members = {**{key: compact(value) for key, value in ENVELOPE.items()}, **changes}
    return ("{" + ",".join(f'"{key}":{text}' for key, text in members.items()) + "}").encode()


def meta_texts(**changes: str) -> str:
    """The text of a canonical `meta` with the JSON text of some members replaced or added."""
    members = {**{key: compact(value) for key, value in META.items()}, **changes}
    return "{" + ",".join(f'"{key}":{text}' for key, text in members.items()) + "}"


def array(*bodies: bytes | None) -> Any:
    """Bodies as the array that the codec takes."""
    return pa.array(bodies, pa.binary())


def row(one: bytes | None, **options: bool) -> dict[str, Any]:
    """The decoded columns of one body."""
    [columns] = decode(array(one), **options).to_pylist()
    return dict(columns)


def error(one: bytes | None, **options: bool) -> str | None:
    """The reason code of one body."""
    code: str | None = row(one, **options)["error"]
    return code


def blocks(*changes: dict[str, Any]) -> Any:
    """Dead letter blocks with some members replaced."""
    usual = {
        "reason": "failed",
        "error": 'Gateway "timeout"',
        "exception": "App\\Exceptions\\GatewayTimeout",
        "failed_at": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        "original_queue": "orders",
        "attempts": 3,
        "lang": "python",
    }
    return pa.array([{**usual, **change} for change in changes], DEAD_LETTER_TYPE)


BLOCK_TEXT = (
    '{"reason":"failed","error":"Gateway \\"timeout\\"","exception":"App\\\\Exceptions\\\\GatewayTimeout",'
    '"failed_at":1767323045678,"original_queue":"orders","attempts":3,"lang":"python"}'
)
