"""The two ways in which a BabelQueue queue lies in Redis: the SDKs' default layout, and Laravel's.

The default layout, which InitPHP has too:

    <queue>                         list: ready bodies, framed where they have headers
    <queue>:processing              list: what the SDKs and InitPHP have claimed
    <queue>:processing:deadlines    sorted set: until when, of the Python SDK
    <queue>:processing:<32 hex>     list: the messages of one claim of ours
    <queue>:processing:claims       sorted set: when our claims lapse
    <queue>:delayed                 sorted set: InitPHP's delayed messages
    <queue>:published:<key>         string: a chunk that was published under this idempotency key
    <queue>:processing:seen         sorted set: messages without a deadline, with `reclaim_idle`
    <queue>:processing:looked       string: when they were last looked for

Laravel's has `<prefix><queue>` (ready), and `:reserved`, `:delayed` and `:notify` behind it.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.redis.client import RedisClient
from babelqueue_spark.bindings.redis.frames import SENTINEL, frame, unframe
from babelqueue_spark.bindings.redis.options import RedisOptions
from babelqueue_spark.bindings.redis.receipts import (
    TOKEN_BYTES,
    are_ours,
    digest,
    framed,
    identity,
    members,
    receipts_of,
    runs_of,
)
from babelqueue_spark.errors import OptionError

_HASH_TAG = re.compile(r"[^{]*\{[^}]+\}", re.DOTALL)
"""The slot of a key is that of what its first braces hold."""

IDEMPOTENCY_PREFIX = "babelqueue-spark:"
_PREFIXES = (IDEMPOTENCY_PREFIX, "bq:idemp:")
"""Of keys of idempotency stores: the worker's and InitPHP's."""
KEY_SECONDS = 7 * 24 * 3600
MIGRATION_LIMIT = 10_000

# What one script takes: other clients wait for it, and larger ones cost more a message.
SCRIPT_MESSAGES = 2_000
SCRIPT_BYTES = 32 * 1024 * 1024


class Layout(ABC):
    """Keys, scripts and stored forms of one layout."""

    headers: bool
    own_keys: re.Pattern[str]
    """What the layout itself, or an idempotency store, stores: names of no queues."""
    migration_limit = MIGRATION_LIMIT

    def __init__(self, options: RedisOptions, client: RedisClient) -> None:
        self._client = client
        self._options = options

    @abstractmethod
    def ready(self, queue: str) -> str:
        """Return the list from which messages are claimed."""

    @abstractmethod
    def settle(self, queue: str, claimed: pa.RecordBatch, *, give_back: bool) -> pa.BooleanArray:
        """Remove claimed messages, or put them back at the head of the queue; true where still ours."""

    @abstractmethod
    def received(self, stored: list[bytes], receipts: pa.Array | None = None) -> pa.RecordBatch:
        """Deliveries of stored elements."""

    def is_own(self, queue: str) -> bool:
        """Return whether the name is that of a key with something else than a queue."""
        return self.own_keys.search(queue) is not None or self.ready(queue).startswith(_PREFIXES)

    def check(self, queue: str) -> None:
        """Raise `OptionError` where the keys of this queue would be in several slots of a cluster."""
        if self._options.topology != "cluster" or _HASH_TAG.match(self.ready(queue)):
            return
        tagged = "{" + re.sub("[{}]", "", queue) + "}"
        raise OptionError(
            f"queue '{queue}': the keys of a queue must be in one slot of a Redis Cluster: put a hash tag "
            f"into its name, such as '{tagged}'"
        )

    def delayed(self, queue: str) -> str:
        """Return the sorted set of delayed messages, by the second in which they are due."""
        return f"{self.ready(queue)}:delayed"

    def acknowledge(self, queue: str, claimed: pa.RecordBatch) -> pa.BooleanArray:
        """Remove claimed messages; true where we still held them."""
        masks = [self.settle(queue, part, give_back=False) for part in parts(claimed)]
        return pa.concat_arrays([pa.array([], pa.bool_()), *masks])

    def peek(self, queue: str, offset: int) -> list[bytes]:
        """Return stored elements of the ready list, which stay there."""
        stored: list[bytes] = self._client.run(
            "browse", [self.ready(queue)], [offset, SCRIPT_MESSAGES, SCRIPT_BYTES], repeatable=True
        )
        return stored

    def head(self, queue: str) -> pa.RecordBatch:
        """Return the first message of the ready list, which stays there; none where it is empty."""
        [stored] = self._client.ask(("LRANGE", self.ready(queue), 0, 0))
        return self.received(stored)

    def _lease(self) -> str:
        return "+inf" if self._options.visibility is None else str(self._options.visibility)

    def _published(self, queue: str, idempotency_key: str | None) -> list[str]:
        return [] if idempotency_key is None else [f"{self.ready(queue)}:published:{idempotency_key}"]

    def _publication(self, stored: list[bytes], messages: pa.RecordBatch) -> list[Any]:
        """Return how many are delayed, their seconds and values, then the other values."""
        delays = messages.column("delay").fill_null(0).to_numpy(zero_copy_only=False)
        late = np.flatnonzero(delays > 0)
        if not len(late):
            return [0, *stored]
        scored = [part for row in late for part in (math.ceil(delays[row] / 1000), stored[row])]
        return [len(late), *scored, *(stored[row] for row in np.flatnonzero(delays <= 0))]


class DefaultLayout(Layout):
    """As the SDKs, but for our claims: a list `<queue>:processing:<token>` each, and one deadline."""

    headers = True
    own_keys = re.compile(
        r":(delayed|processing(:(deadlines|claims|seen|looked|[0-9a-f]{32}))?|published:[0-9a-f]{32})\Z"
    )

    def ready(self, queue: str) -> str:
        return queue

    def processing(self, queue: str) -> str:
        """Return the list of messages that other clients have in flight."""
        return f"{queue}:processing"

    def deadlines(self, queue: str) -> str:
        """Return the sorted set of the SDK's claims; members are `<32 characters>:<stored element>`."""
        return f"{self.processing(queue)}:deadlines"

    def claims(self, queue: str) -> str:
        """Return the sorted set of our claims, by the second in which they lapse; members are tokens."""
        return f"{self.processing(queue)}:claims"

    def claimed(self, queue: str, token: str) -> str:
        """Return the list of the messages of one of our claims."""
        return f"{self.processing(queue)}:{token}"

    def backlog(self, queue: str) -> int:
        """Messages that are ready, due or lapsed; of a lapsed claim also what was settled in its midst."""
        self._reclaim(queue)
        keys = [self.ready(queue), self.delayed(queue), *self._in_flight(queue)]
        return int(self._client.run("default_backlog", keys, [], repeatable=True))

    def claim(self, queue: str, messages: int, max_bytes: int, least: int) -> pa.RecordBatch:
        """Return deliveries whose receipts are token and index; `least` of them even beyond `max_bytes`.

        More than `max_bytes` where they were misjudged.
        """
        self._reclaim(queue)
        token = secrets.token_bytes(TOKEN_BYTES)
        keys = [self.ready(queue), self.delayed(queue), *self._in_flight(queue)]
        claimed = self.claimed(queue, token.hex())
        args = [self._lease(), token.hex(), messages, max_bytes, least, self.migration_limit]
        if not self._client.run("default_claim", [*keys, claimed], args):
            return self.received([])
        [stored] = self._client.ask(("LRANGE", claimed, 0, -1))
        return self.received(stored, receipts_of(token, len(stored)))

    def received(self, stored: list[bytes], receipts: pa.Array | None = None) -> pa.RecordBatch:
        """Bodies and headers out of frames; bare elements as they are."""
        if SENTINEL not in b"".join(stored):
            return deliveries(len(stored), body=stored, receipt=receipts)
        tokens = None if receipts is None else _values(receipts)
        opened = list(stored)
        headers: list[dict[str, str]] = [{}] * len(stored)
        for row, element in enumerate(stored):
            opened[row], headers[row] = unframe(element)
            if tokens is not None and opened[row] != element:
                tokens[row] = framed(tokens[row], element)
        pairs = [list(entry.items()) or None for entry in headers]
        return deliveries(len(stored), body=opened, receipt=tokens, headers=pairs)

    def acknowledge(self, queue: str, claimed: pa.RecordBatch) -> pa.BooleanArray:
        """Our claims by their runs, whatever their size; those of the SDK message by message."""
        return _by_form(
            claimed,
            lambda ours: self._settle_claims(queue, ours, give_back=False),
            lambda theirs: super(DefaultLayout, self).acknowledge(queue, theirs),
        )

    def settle(self, queue: str, claimed: pa.RecordBatch, *, give_back: bool) -> pa.BooleanArray:
        """Whoever still has the message in its claim, or the deadline member, holds it."""
        return _by_form(
            claimed,
            lambda ours: self._settle_claims(queue, ours, give_back=give_back),
            lambda theirs: self._settle_members(queue, theirs, give_back=give_back),
        )

    def recover(self, queue: str) -> int:
        """Return lapsed claims, ours and the SDK's, and idle messages to the queue; how many."""
        keys = [self.ready(queue), *self._in_flight(queue)]
        recovered, left = self._reclaim(queue), True
        while left:
            moved, left = self._client.run("default_recover", keys, [self.migration_limit])
            recovered += moved
        return recovered

    def _in_flight(self, queue: str) -> list[str]:
        return [self.processing(queue), self.deadlines(queue), self.claims(queue)]

    def _settle_claims(self, queue: str, claimed: pa.RecordBatch, *, give_back: bool) -> pa.BooleanArray:
        keys = [self.processing(queue), self.claims(queue)] + [self.ready(queue)] * give_back
        runs = list(runs_of(claimed.column("receipt")))
        answers: list[bytes] = []
        for start in range(0, len(runs), SCRIPT_MESSAGES):
            args = [word for run in runs[start : start + SCRIPT_MESSAGES] for word in run]
            answers += self._client.run("default_settle_claims", keys, args)
        sizes = (first - last + 1 for _, first, last in runs)
        digits = (one * (size // len(one)) for one, size in zip(answers, sizes, strict=True))
        return _mask(b"".join(digits))

    def _settle_members(self, queue: str, claimed: pa.RecordBatch, *, give_back: bool) -> pa.BooleanArray:
        keys = [self.processing(queue), self.deadlines(queue)] + [self.ready(queue)] * give_back
        return _mask(self._client.run("default_settle", keys, members(claimed)))

    def publish(self, queue: str, messages: pa.RecordBatch, idempotency_key: str | None) -> int:
        """Append bodies, in a frame where they have headers."""
        stored = _stored(messages)
        known = self._published(queue, idempotency_key)
        # Transactions of redis-py's cluster client have rules of their own: there a script does it.
        scripted = bool(known) and self._options.topology == "cluster"
        if scripted or pc.max(messages.column("delay")).as_py():
            keys = [self.ready(queue), self.delayed(queue), *known]
            args = [KEY_SECONDS, secrets.token_hex(8), *self._publication(_values(stored), messages)]
            return int(self._client.run("default_publish", keys, args))
        if known:
            return self._client.append_once(self.ready(queue), stored, known[0], KEY_SECONDS)
        return self._client.append(self.ready(queue), stored)

    def identities(self, claimed: pa.RecordBatch) -> list[str]:
        """Return a digest of the stored element."""
        pairs = zip(_values(claimed.column("body")), claimed.column("receipt").to_pylist(), strict=True)
        return [identity(body, receipt or b"") for body, receipt in pairs]

    def unowned(self, queue: str) -> int:
        """Messages in flight without a deadline, which only the program that took them can settle."""
        in_flight, claimed = self._client.ask(
            ("LLEN", self.processing(queue)), ("ZCARD", self.deadlines(queue))
        )
        return max(0, int(in_flight) - int(claimed))

    def _reclaim(self, queue: str) -> int:
        """Release messages in flight that were seen without a deadline for `reclaim_idle` seconds."""
        idle = self._options.reclaim_idle
        if idle is None:
            return 0
        processing = self.processing(queue)
        keys = [queue, processing, self.deadlines(queue), f"{processing}:seen", f"{processing}:looked"]
        args = [idle, max(1, math.floor(idle / 10))]
        return int(self._client.run("default_reclaim", keys, args, repeatable=True))


class LaravelLayout(Layout):
    """As Laravel: list `<prefix><queue>`, sorted sets `:reserved` and `:delayed`, list `:notify`."""

    headers = False
    own_keys = re.compile(r":(delayed|reserved|notify|published:[0-9a-f]{32})\Z")

    def ready(self, queue: str) -> str:
        return self._options.prefix + queue

    def claims(self, queue: str) -> str:
        """Return the sorted set of claims: of bodies whose `attempts` is one higher, as cjson writes them."""
        return f"{self.ready(queue)}:reserved"

    def backlog(self, queue: str) -> int:
        keys = [self.ready(queue), self.delayed(queue), self.claims(queue)]
        return int(self._client.run("laravel_backlog", keys, [int(self._recovers)], repeatable=True))

    def claim(self, queue: str, messages: int, max_bytes: int, least: int) -> pa.RecordBatch:
        """Return deliveries whose receipts are reserved members, empty where that is the body itself."""
        bodies, members = self._client.run(
            "laravel_claim",
            [self.ready(queue), self._notify(queue), self.claims(queue), self.delayed(queue)],
            [self._lease(), messages, max_bytes, least, self.migration_limit, int(self._recovers)],
        )
        return self.received(bodies, pa.array(members, pa.binary()))

    def received(self, stored: list[bytes], receipts: pa.Array | None = None) -> pa.RecordBatch:
        return deliveries(len(stored), body=stored, receipt=receipts)

    def settle(self, queue: str, claimed: pa.RecordBatch, *, give_back: bool) -> pa.BooleanArray:
        bodies, receipts = claimed.column("body"), claimed.column("receipt")
        members = pc.if_else(pc.equal(pc.binary_length(receipts), 0), bodies, receipts)
        keys, args = [self.claims(queue)], [len(members), *_values(members)]
        if give_back:
            keys += [self.ready(queue), self._notify(queue)]
            args += _values(bodies)
        return _mask(self._client.run("laravel_settle", keys, args))

    def publish(self, queue: str, messages: pa.RecordBatch, idempotency_key: str | None) -> int:
        """Append bodies; this layout has no place for headers."""
        stored = _values(messages.column("body"))
        return int(
            self._client.run(
                "laravel_publish",
                [
                    self.ready(queue),
                    self._notify(queue),
                    self.delayed(queue),
                    *self._published(queue, idempotency_key),
                ],
                [KEY_SECONDS, *self._publication(stored, messages)],
            )
        )

    def identities(self, claimed: pa.RecordBatch) -> list[str]:
        """Return a digest of what cjson keeps of the body, without `attempts`; a lapsed claim keeps it."""
        return [digest(_canonical(body)) for body in _values(claimed.column("body"))]

    @property
    def _recovers(self) -> bool:
        return self._options.visibility is not None

    def _notify(self, queue: str) -> str:
        return f"{self.ready(queue)}:notify"


def parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of the size that one script takes."""
    start, size = 0, 0
    for row, length in enumerate(pc.binary_length(batch.column("body")).to_numpy().tolist()):
        if row - start == SCRIPT_MESSAGES or (row > start and size + length > SCRIPT_BYTES):
            yield batch.slice(start, row - start)
            start, size = row, 0
        size += length
    if start < batch.num_rows:
        yield batch.slice(start)


def _by_form(
    claimed: pa.RecordBatch,
    settle: Callable[[pa.RecordBatch], pa.BooleanArray],
    settle_theirs: Callable[[pa.RecordBatch], pa.BooleanArray],
) -> pa.BooleanArray:
    """Join the answers of two functions: for rows with receipts of claims, and with the SDK's."""
    ours = are_ours(claimed.column("receipt"))
    if ours.true_count == len(ours):
        return settle(claimed)
    theirs = pc.invert(ours)
    answers = pc.replace_with_mask(ours, theirs, settle_theirs(claimed.filter(theirs)))
    return pc.replace_with_mask(answers, ours, settle(claimed.filter(ours)))


def _stored(messages: pa.RecordBatch) -> pa.BinaryArray:
    """Bodies, in a frame where they have headers."""
    bodies, headers = messages.column("body"), messages.column("headers")
    if headers.offsets[0] == headers.offsets[-1]:
        return bodies
    pairs = zip(_values(bodies), headers.to_pylist(), strict=True)
    return pa.array([frame(body, dict(entries or ())) for body, entries in pairs], pa.binary())


def _values(column: pa.Array) -> list[bytes]:
    values: list[bytes] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _mask(digits: bytes) -> pa.BooleanArray:
    return pa.array(np.frombuffer(digits, np.uint8) == ord("1"))


def _canonical(body: bytes) -> bytes:
    """Return what a body shares with its copy that cjson wrote: `%.14g`, `{}` for `[]`, sorted keys."""

    def number(text: str) -> str:
        return f"{float(text):.14g}"

    def array(value: Any) -> Any:
        if isinstance(value, list):
            return [array(item) for item in value] or {}
        if isinstance(value, dict):
            return {name: array(item) for name, item in value.items()}
        return value

    try:
        job = json.loads(body.decode("utf-8", "surrogateescape"), parse_int=number, parse_float=number)
        if isinstance(job, dict):
            job.pop("attempts", None)
        return json.dumps(array(job), sort_keys=True).encode()
    except (ValueError, RecursionError):
        return body
