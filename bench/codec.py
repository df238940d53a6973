"""The codec on one core: bodies to columns and back, against bare msgspec and the published SDK."""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import msgspec
import pyarrow as pa
from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.envelope import decode, encode, set_attempts
from bench.table import Row, rate, row, show

BODIES = 100_000
SLOW_BODIES = 10_000
BAD = [b"not json", b"[]", b'{"job":"urn:x"', b'{"job":"\xff"}', b'{"job":"urn:x","attempts":"x"}']


class Meta(msgspec.Struct, gc=False):
    id: str
    queue: str
    lang: str
    schema_version: int
    created_at: int


class Envelope(msgspec.Struct, gc=False):
    job: str
    trace_id: str
    data: msgspec.Raw
    meta: Meta
    attempts: int


def body(number: int) -> bytes:
    """A canonical body of about 420 bytes."""
    data = {
        "order_id": number,
        "amount": 99.9,
        "customer": str(uuid.uuid4()),
        "note": "größe " + "x" * 60,
        "items": [{"sku": f"a{number}", "n": 2}],
    }
    envelope = EnvelopeCodec.make("urn:babel:orders:created", data, queue="orders")
    return EnvelopeCodec.encode(envelope).encode()


def spaced(one: bytes) -> bytes:
    """The body as `json.dumps` writes it."""
    return json.dumps(json.loads(one)).encode()


def rows() -> list[Row]:
    """The codec rows of the design, and some that it has no floor for."""
    bodies = [body(number) for number in range(BODIES)]
    array = pa.array(bodies, pa.binary())
    columns = decode(array).drop_columns(["error"])
    texts = [one.decode() for one in bodies[:SLOW_BODIES]]
    parsed = [json.loads(one) for one in texts]
    parse = msgspec.json.Decoder(Envelope).decode
    kept = rate(BODIES, lambda: [parse(one) for one in bodies])
    ours = rate(BODIES, lambda: decode(array))
    written = rate(BODIES, lambda: encode(columns))
    sdk_decode = rate(SLOW_BODIES, lambda: [accepted(one) for one in texts])
    sdk_encode = rate(SLOW_BODIES, lambda: [EnvelopeCodec.encode(one) for one in parsed])
    mixed = [BAD[number // 100 % len(BAD)] if number % 100 == 0 else one for number, one in enumerate(bodies)]
    others = {
        "decode, 1 % bad": mixed,
        "decode, json.dumps style": [spaced(one) for one in bodies],
        "decode, dead letters": [one[:-1] + b',"dead_letter":{"reason":"failed"}}' for one in bodies],
        "decode, all bad": [one[:-1] for one in bodies],
    }
    counts = pa.array([1] * BODIES, pa.int32())
    return [
        row("decode to columns", ours, "bare msgspec, Structs kept", kept, 0.5),
        row("decode to columns", ours, "SDK decode + accepts", sdk_decode, 3),
        row("encode columns", written, "SDK encode", sdk_encode, 10),
        *(row(work, decode_rate(other), "decode to columns", ours, None) for work, other in others.items()),
        row(
            "set attempts", rate(BODIES, lambda: set_attempts(array, counts)), "SDK encode", sdk_encode, None
        ),
    ]


def decode_rate(bodies: list[bytes]) -> float:
    """Bodies decoded a second."""
    array = pa.array(bodies, pa.binary())
    return rate(len(bodies), lambda: decode(array))


def accepted(one: str) -> Any:
    """The SDK's verdict on a body."""
    return EnvelopeCodec.accepts(EnvelopeCodec.decode(one))


if __name__ == "__main__":
    sys.exit(show(rows()))
