"""The codec on one core: bodies to columns and back, against bare msgspec and the published SDK."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa
from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.envelope import decode, encode, set_attempts
from bench.table import Row, rate, row, show

BODIES = 100_000
SLOW_BODIES = 10_000
#: Rows of a batch, as many as Spark puts into an Arrow batch.
BATCH = 10_000
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
    texts = [one.decode() for one in bodies[:SLOW_BODIES]]
    parsed = [json.loads(one) for one in texts]
    array = pa.array(bodies, pa.binary())
    columns = decode(array).drop_columns(["error"])
    counts = pa.array([1] * BATCH, pa.int32())
    parse = msgspec.json.Decoder(Envelope).decode
    mixed = [BAD[number // 100 % len(BAD)] if number % 100 == 0 else one for number, one in enumerate(bodies)]
    others = {
        "decode, 1 % bad": mixed,
        "decode, json.dumps style": [spaced(one) for one in bodies],
        "decode, dead letters": [one[:-1] + b',"dead_letter":{"reason":"failed"}}' for one in bodies],
        "decode, all bad": [one[:-1] for one in bodies],
    }
    works: dict[str, tuple[int, Callable[[], Any]]] = {
        "bare": (BODIES, lambda: [parse(one) for one in bodies]),
        "decode": (BODIES, in_batches(decode, array)),
        "SDK decode": (SLOW_BODIES, lambda: [accepted(one) for one in texts]),
        "encode": (BODIES, in_batches(encode, columns)),
        "SDK encode": (SLOW_BODIES, lambda: [EnvelopeCodec.encode(one) for one in parsed]),
        "set attempts": (BODIES, in_batches(lambda batch: set_attempts(batch, counts), array)),
    }
    works |= {work: (BODIES, in_batches(decode, pa.array(other))) for work, other in others.items()}
    rates = in_turns(works)
    return [
        row("decode to columns", rates["decode"], "bare msgspec, Structs kept", rates["bare"], 0.5),
        row("decode to columns", rates["decode"], "SDK decode + accepts", rates["SDK decode"], 3),
        row("encode columns", rates["encode"], "SDK encode", rates["SDK encode"], 10),
        *(row(work, rates[work], "decode to columns", rates["decode"], None) for work in others),
        row("set attempts", rates["set attempts"], "SDK encode", rates["SDK encode"], None),
    ]


def in_batches(work: Callable[[Any], Any], rows: Any) -> Callable[[], Any]:
    """The work on each batch of these rows."""
    batches = [rows.slice(start, BATCH) for start in range(0, BODIES, BATCH)]
    return lambda: [work(batch) for batch in batches]


def in_turns(works: dict[str, tuple[int, Callable[[], Any]]], rounds: int = 5) -> dict[str, float]:
    """Units a second of each work, the median of rounds: in each, all have their turn, and noise hits all."""
    measured: dict[str, list[float]] = {work: [] for work in works}
    for _ in range(rounds):
        for work, (count, run) in works.items():
            measured[work].append(rate(count, run, repeats=1))
    return {work: median(rates) for work, rates in measured.items()}


def accepted(one: str) -> Any:
    """The SDK's verdict on a body."""
    return EnvelopeCodec.accepts(EnvelopeCodec.decode(one))


if __name__ == "__main__":
    sys.exit(show(rows()))
