"""The binding of Redis."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import deliveries, envelopes_of, fitting, total_bytes
from babelqueue_spark.bindings.contract import Binding, BindingConfig, Capabilities, DeadLetterStyle
from babelqueue_spark.bindings.redis.client import RedisClient
from babelqueue_spark.bindings.redis.layouts import SCRIPT_MESSAGES, DefaultLayout, LaravelLayout, parts
from babelqueue_spark.bindings.redis.options import DEFAULT_PREFIX, RedisOptions
from babelqueue_spark.errors import BrokerError


class RedisBinding(Binding):
    """Redis, in the SDKs' default layout or in Laravel's; deadlines and delays go by its server's clock."""

    name = "redis"
    title = "Redis"
    frames_headers = True
    capabilities = Capabilities(
        visibility_timeout=90.0,
        claim_batch=10_000,
        publish_batch=10_000,
        durable_receipts=True,
        publish_once=True,
        max_delay=None,
        browse="exact",
        ordered=True,
        headers=True,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        options = RedisOptions.parse(config)
        self._client = RedisClient(options)
        self.silence_limit = options.silence_limit
        layout = LaravelLayout if options.laravel else DefaultLayout
        self.layout: DefaultLayout | LaravelLayout = layout(options, self._client)
        self.capabilities = replace(self.capabilities, headers=self.layout.headers)
        # Deadlines are whole seconds, counted from the second that has begun. A lease of 0 would be none.
        self.lease = math.inf if options.visibility is None else max(0.001, options.visibility - 1.0)

    def backlog(self, queue: str) -> int:
        """Count ready messages, delayed ones that are due, and lapsed claims; release idle ones first."""
        return self.layout.backlog(queue)

    def advice(self, queue: str) -> str:
        """Another prefix, as Laravel's connection or PhpRedis may set one."""
        ending = (DEFAULT_PREFIX if isinstance(self.layout, LaravelLayout) else ":") + queue
        found = self._lists("*", ending) - {self.layout.ready(queue)}
        return _how_to_read(min(found), queue) if found else ""

    def queues(self) -> list[str]:
        """List those with ready messages; none in a cluster."""
        prefix = self.layout.ready("")
        names = (key.removeprefix(prefix) for key in sorted(self._lists(prefix, "*")))
        return [name for name in names if not self.layout.is_own(name)][:1000]

    def _lists(self, *pattern: str) -> set[str]:
        """Return keys of lists: `*` stands for any text, other parts of the pattern for themselves."""
        glob = "".join(part if part == "*" else re.sub(r"([*?\[\]^\\])", r"\\\1", part) for part in pattern)
        try:
            return {key.decode("utf-8", "backslashreplace") for key in self._client.lists(glob)}
        except BrokerError:  # SCAN is a right of its own
            return set()

    def oldest(self, queue: str) -> float | None:
        """`meta.created_at` of the head of the ready list, by its producer's clock."""
        head = self.layout.head(queue)
        meta = envelopes_of(head).column("meta")
        created_at = pc.cast(pc.struct_field(meta, "created_at"), pa.int64()).to_pylist()
        return created_at[0] / 1_000_000 if created_at and created_at[0] is not None else None

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim by scripts that first release lapsed claims and move delayed messages that are due."""
        batches: list[pa.RecordBatch] = []
        while messages > 0 and max_bytes > 0:
            asked = min(messages, SCRIPT_MESSAGES)
            batch = self._claim(queue, asked, max_bytes, least=0 if batches else 1)
            batches.append(batch)
            messages -= asked
            max_bytes -= total_bytes(batch)
            if batch.num_rows < asked:
                break
        return pa.concat_batches(batches) if batches else deliveries(0)

    def _claim(self, queue: str, messages: int, max_bytes: int, least: int) -> pa.RecordBatch:
        """Claim by one script, without what it took beyond the bytes."""
        batch = self.layout.claim(queue, messages, max_bytes, least)
        if total_bytes(batch) <= max_bytes:
            return batch
        sizes = pc.binary_length(batch.column("body")).to_pylist()
        kept = fitting(sizes, max_bytes, least=least)
        self._give_back(lambda: self.release(queue, batch.slice(kept)), batch.num_rows - kept)
        return batch.slice(0, kept)

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        return self.layout.acknowledge(queue, deliveries)

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """To the head of the queue, in their order."""
        for part in reversed(list(parts(deliveries))):
            self.layout.settle(queue, part, give_back=True)

    def recover(self, queue: str) -> int:
        """Return lapsed claims to the queue, as every claim does first; how many messages."""
        if isinstance(self.layout, LaravelLayout):
            raise BrokerError(
                f"{self.title}: queue '{queue}': Laravel's workers return lapsed claims: start one of them"
            )
        return self.layout.recover(queue)

    def unowned(self, queue: str) -> int:
        return self.layout.unowned(queue) if isinstance(self.layout, DefaultLayout) else 0

    def check_queue(self, queue: str) -> None:
        """Refuse a name that is a key of ours, or whose keys lie in several slots of a cluster."""
        super().check_queue(queue)
        self.layout.check(queue)
        if self.layout.is_own(queue):
            raise self.refused_name(queue, "this key holds something else")

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Publish by one transaction or script where there is a key, else by commands of bounded size."""
        if idempotency_key is not None:
            return self.layout.publish(queue, messages, idempotency_key)
        return sum(self.layout.publish(queue, part, None) for part in parts(messages))

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Yield the ready list from head to tail; what others take or add meanwhile shifts it under us."""
        seen = 0
        while stored := self.layout.peek(queue, seen):
            yield self.layout.received(stored)
            seen += len(stored)

    def now(self) -> float:
        return self._client.now()

    def skew(self) -> float:
        now = self._client.now()
        return time.time() - now

    def close(self) -> None:
        self._client.close()

    @classmethod
    def dead_letter_name(cls, queue: str, style: DeadLetterStyle) -> str:
        return f"{queue}.dlq" if style == "babelqueue" else f"{queue}:failed"

    def identities(self, deliveries: pa.RecordBatch) -> list[str]:
        """Digests of what lies in Redis, which has no name for a message."""
        return self.layout.identities(deliveries)


def _how_to_read(key: str, queue: str) -> str:
    """Say which options name a list whose name ends as a queue's does."""
    prefix = key.removesuffix(queue)
    options = f"queue={key}"
    if prefix.endswith(DEFAULT_PREFIX):
        options = f"redis.laravel=true, redis.prefix={prefix}"
    return f"there is a list '{key}': to read it, set {options}"
