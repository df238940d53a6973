"""The codec on one core: bodies to columns and back, against bare msgspec and the published SDK."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from babelqueue.codec import EnvelopeCodec

from babelqueue_spark.envelope import decode, encode, set_attempts, validate
from bench.table import Row, in_turns, rate, row, show

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


def body(number: int, note: int = 60, items: int = 1) -> bytes:
    """A canonical body of about 330 bytes, a note of so many more, and items of 25 bytes each."""
    data = {
        "order_id": number,
        "amount": 99.9,
        "customer": str(uuid.uuid4()),
        "note": "größe " + "x" * note,
        "items": [{"sku": f"a{number}", "n": 2}] * items,
    }
    envelope = EnvelopeCodec.make("urn:babel:orders:created", data, queue="orders")
    return EnvelopeCodec.encode(envelope).encode()


def small(number: int) -> bytes:
    """A canonical body of about 240 bytes."""
    return EnvelopeCodec.encode(EnvelopeCodec.make("urn:b:o:c", {"id": number}, queue="orders")).encode()


def spaced(one: bytes) -> bytes:
    """The body as `json.dumps` writes it."""
    return json.dumps(json.loads(one)).encode()


def rows() -> list[Row]:
    """The codec rows of the design, and some that it has no floor for."""
    bodies = [body(number) for number in range(BODIES)]
    return [
        *of_size("240-byte", [small(number) for number in range(BODIES)], floors=True),
        *of_size("420-byte", bodies, floors=True),
        *of_size("4-kB", [body(number, 3600) for number in range(BODIES // 10)], floors=True),
        *of_size("three-item", [body(number, items=3) for number in range(BODIES // 10)], floors=False),
        *of_kind(bodies),
    ]


def of_size(size: str, bodies: list[bytes], *, floors: bool) -> list[Row]:
    """Bodies of one size against the peers."""
    texts = [one.decode() for one in bodies[:SLOW_BODIES]]
    parsed = [json.loads(one) for one in texts]
    array = pa.array(bodies, pa.binary())
    columns = decode(array).drop_columns(["error"])
    parse = msgspec.json.Decoder(Envelope).decode
    rates = speeds(
        {
            "bare": (len(bodies), lambda: [parse(one) for one in bodies]),
            "decode": (len(bodies), in_batches(decode, array)),
            "decode, 1 % bad": (len(bodies), in_batches(decode, pa.array(with_bad(bodies)))),
            "validate": (len(bodies), in_batches(validate, array)),
            "SDK decode": (len(texts), lambda: [accepted(one) for one in texts]),
            "encode": (len(bodies), in_batches(encode, columns)),
            "SDK encode": (len(texts), lambda: [EnvelopeCodec.encode(one) for one in parsed]),
        }
    )
    wanted = {"bare": 0.5, "SDK decode": 3, "SDK encode": 10} if floors else {}
    against = [
        ("decode", "bare", "bare msgspec, Structs kept"),
        ("decode", "SDK decode", "SDK decode + accepts"),
        ("decode, 1 % bad", "decode", "none bad"),
        ("validate", "SDK decode", "SDK decode + accepts"),
        ("encode", "SDK encode", "SDK encode"),
    ]
    return [
        row(f"{ours}, {size} bodies", rates[ours], name, rates[theirs], wanted.get(theirs))
        for ours, theirs, name in against
    ]


def with_bad(bodies: list[bytes]) -> list[bytes]:
    """The bodies, every hundredth of them replaced by a bad one."""
    return [BAD[number // 100 % len(BAD)] if number % 100 == 0 else one for number, one in enumerate(bodies)]


def of_kind(bodies: list[bytes]) -> list[Row]:
    """Bodies that are not canonical, against canonical ones of the same size."""
    kinds = {
        "canonical": bodies,
        "decode, json.dumps style": [spaced(one) for one in bodies],
        "decode, dead letters": [one[:-1] + b',"dead_letter":{"reason":"failed"}}' for one in bodies],
        "decode, all bad": [one[:-1] for one in bodies],
    }
    counts = pa.array([1] * BATCH, pa.int32())
    works = {kind: (BODIES, in_batches(decode, pa.array(found))) for kind, found in kinds.items()}
    works["set attempts"] = (
        BODIES,
        in_batches(lambda batch: set_attempts(batch, counts[: len(batch)]), pa.array(bodies)),
    )
    rates = speeds(works)
    canonical = rates.pop("canonical")
    return [row(work, ours, "decode, 420-byte bodies", canonical, None) for work, ours in rates.items()]


def in_batches(work: Callable[[Any], Any], rows: Any) -> Callable[[], Any]:
    """The work on each batch of these rows."""
    count = rows.num_rows if isinstance(rows, pa.RecordBatch) else len(rows)
    batches = [rows.slice(start, BATCH) for start in range(0, count, BATCH)]
    return lambda: [work(batch) for batch in batches]


def speeds(works: dict[str, tuple[int, Callable[[], Any]]]) -> dict[str, float]:
    """Units a second of each work, given with how many units it is."""
    return in_turns({name: partial(rate, *work, repeats=1) for name, work in works.items()}, rounds=5)


def accepted(one: str) -> Any:
    """The SDK's verdict on a body."""
    return EnvelopeCodec.accepts(EnvelopeCodec.decode(one))


if __name__ == "__main__":
    sys.exit(show(rows()))
