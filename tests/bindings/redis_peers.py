"""What the Redis tests share: messages, bindings, and the published SDK beside us."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from babelqueue.redis_transport import RedisTransport
from redis import Redis

from babelqueue_spark.bindings.batches import OUTGOING, deliveries
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.bindings.redis import client as redis_client
from babelqueue_spark.bindings.redis.frames import unframe
from tests.servers import RedisServer

NO_LIMIT = 1 << 40


class Clock:
    """Seconds that pass when a test says so, for the SDK and for our scripts in the server."""

    def __init__(self, client: Redis, monkeypatch: pytest.MonkeyPatch, now: float = 1_700_000_000.25) -> None:
        self._client = client
        self._key = f"clock {uuid.uuid4()}"
        self.now = now
        source = redis_client._source
        ours = f"{{redis.call('get', '{self._key}'), 0}}"
        monkeypatch.setattr(
            redis_client, "_source", lambda script: source(script).replace("redis.call('time')", ours)
        )

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, seconds: float) -> None:
        self._now = seconds
        self._client.set(self._key, repr(seconds))

    def __call__(self) -> float:
        return self.now


def envelope(number: int, **members: Any) -> bytes:
    """A conformant body, as the SDK writes it."""
    return json.dumps(
        {
            "job": "urn:babel:orders:created",
            "trace_id": str(uuid.uuid4()),
            "data": {"order_id": number, "note": "ünï/code"},
            "meta": {
                "id": str(uuid.uuid4()),
                "queue": "orders",
                "lang": "python",
                "schema_version": 1,
                "created_at": 1_749_132_727_000,
            },
            "attempts": 0,
            **members,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def claims_of(client: Redis, queue: str) -> list[tuple[bytes, float, list[bytes]]]:
    """Token, second in which it lapses, and unsettled messages of each claim of ours; none is without list."""
    found = []
    for token, lapses in client.zrange(f"{queue}:processing:claims", 0, -1, withscores=True):
        stored = client.lrange(f"{queue}:processing:{token.decode()}", 0, -1)
        assert stored
        assert stored[0] != token
        found.append((token, lapses, [value for value in stored if value != token]))
    lists = [key for key in client.keys(f"{queue}:processing:*") if len(key.rpartition(b":")[2]) == 32]
    assert len(lists) == len(found)
    return found


def in_flight(client: Redis, queue: str) -> list[bytes]:
    """The messages in our claims, sorted."""
    return sorted(value for _, _, stored in claims_of(client, queue) for value in stored)


def sdk_claim(client: Redis, queue: str, lapses: float) -> pa.RecordBatch:
    """All that is ready, as the SDK claims it: element by element, in the keys of the SDK."""
    stored = client.lrange(queue, 0, -1)
    client.delete(queue)
    client.rpush(f"{queue}:processing", *stored)
    tokens = [b"%016x%016x" % (0xFEDC, number + 1) for number in range(len(stored))]
    pairs = list(zip(tokens, stored, strict=True))
    client.zadd(f"{queue}:processing:deadlines", {b"%b:%b" % pair: lapses for pair in pairs})
    opened = [unframe(element) for element in stored]
    return deliveries(
        len(stored),
        body=[body for body, _ in opened],
        headers=[list(headers.items()) or None for _, headers in opened],
        receipt=[
            token if body == element else b"%b:%b" % (token, element)
            for (token, element), (body, _) in zip(pairs, opened, strict=True)
        ],
    )


def outgoing(
    bodies: Sequence[bytes],
    headers: Sequence[Mapping[str, str] | None] | None = None,
    delay: Sequence[int | None] | None = None,
) -> pa.RecordBatch:
    """An `OUTGOING` batch."""
    none = [None] * len(bodies)
    pairs = [entry and list(entry.items()) for entry in headers or none]
    columns = [bodies, pairs, none, delay or none]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, OUTGOING, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=OUTGOING)


def binding(server: RedisServer, *, visibility: float | None = None, **options: str) -> RedisBinding:
    """A binding to a test server."""
    return RedisBinding(BindingConfig(url=server.url, visibility_timeout=visibility, client_options=options))


def sdk(server: RedisServer, clock: Clock | None = None, **options: Any) -> RedisTransport:
    """The published SDK's transport to a test server."""
    return RedisTransport(server.url, **options, **({"clock": clock} if clock else {}))


def bodies(batch: pa.RecordBatch) -> list[bytes]:
    """The bodies of a batch."""
    values: list[bytes] = batch.column("body").to_pylist()
    return values
