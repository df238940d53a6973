"""Five consumers of four kinds share one queue: two readers of ours, the SDK, InitPHP, and a worker as in Go."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from redis import Redis

from babelqueue_spark.bindings.redis.frames import unframe
from tests.bindings.redis_peers import binding, bodies, outgoing, sdk
from tests.servers import RedisServer

pytestmark = pytest.mark.server

MESSAGES = 6_000
SECONDS = 60.0


class Shared:
    """A queue, and what its consumers did to the messages."""

    def __init__(self, server: RedisServer, queue: str) -> None:
        self.server = server
        self.queue = queue
        self.processing = f"{queue}:processing"
        self.consumed: Counter[bytes] = Counter()
        self.left: Counter[bytes] = Counter()
        self.abandoned = 0
        self.by: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._end = time.monotonic() + SECONDS

    @property
    def running(self) -> bool:
        """Until each message was consumed, or left in flight for ever by a worker that nobody may touch."""
        return len(self.consumed) + len(self.left) < MESSAGES and time.monotonic() < self._end

    def note(self, who: str, *messages: bytes) -> None:
        with self._lock:
            self.consumed.update(unframe(message)[0] for message in messages)
            self.by[who] += len(messages)

    def ours(self, seed: int) -> None:
        """Claims that are acknowledged whole, in part, released, or left to lapse by a reader that dies."""
        random = Random(seed)
        while self.running:
            with binding(self.server, visibility=2) as reader:
                for _ in range(20):
                    reader.backlog(self.queue)
                    claimed = reader.claim(self.queue, random.randrange(1, 60), 1 << 20)
                    if random.random() < 0.1:
                        self.abandoned += claimed.num_rows
                        break
                    rows = sorted(
                        random.sample(range(claimed.num_rows), random.randrange(claimed.num_rows + 1))
                    )
                    part = claimed.take(rows) if random.random() < 0.5 and rows else claimed
                    removed = reader.acknowledge(self.queue, part)
                    self.note("ours", *bodies(part.filter(removed)))
                    reader.release(self.queue, claimed)

    def sdk(self) -> None:
        """The SDK's consumer, which gives back lapsed claims of its own kind, and abandons some itself."""
        random, peer = Random(3), sdk(self.server, retry_after=5)
        with Redis(port=self.server.port) as client:
            while self.running:
                message = peer.pop(self.queue, 0)
                if message is None or random.random() < 0.1:
                    continue
                member = f"{message.handle.token}:{message.handle.raw}"
                held = client.zscore(f"{self.processing}:deadlines", member) is not None
                peer.ack(message)
                if held:
                    self.note("sdk", message.body.encode())

    def initphp(self) -> None:
        """As InitPHP's transport: LMOVE, then LREM; a retry goes to the delayed messages."""
        random = Random(4)
        with Redis(port=self.server.port) as client:
            while self.running:
                body = client.lmove(self.queue, self.processing, "LEFT", "RIGHT")
                if body is None:
                    continue
                if random.random() < 0.1:
                    with client.pipeline() as retry:
                        retry.lrem(self.processing, 1, body)
                        retry.zadd(f"{self.queue}:delayed", {body: int(time.time())})
                        retry.execute()
                elif client.lrem(self.processing, 1, body):
                    self.note("initphp", body)

    def go(self) -> None:
        """As the SDK for Go: no deadline; what it does not end is left in flight."""
        random = Random(5)
        with Redis(port=self.server.port) as client:
            while self.running:
                body = client.lmove(self.queue, self.processing, "LEFT", "RIGHT")
                if body is None:
                    continue
                if random.random() < 0.02:
                    with self._lock:
                        self.left[body] += 1
                elif client.lrem(self.processing, 1, body):
                    self.note("go", body)


def test_a_shared_queue_loses_nothing(redis_server: RedisServer, queue: str) -> None:
    shared = Shared(redis_server, queue)
    sent = [b'{"job":"urn:x","data":{"n":%d},"attempts":0}' % number for number in range(MESSAGES)]
    with binding(redis_server) as writer:
        writer.publish(queue, outgoing(sent, [{"h": "1"} if n % 50 == 0 else None for n in range(MESSAGES)]))
    workers: list[Callable[[], None]] = [
        lambda: shared.ours(1),
        lambda: shared.ours(2),
        shared.sdk,
        shared.initphp,
        shared.go,
    ]
    threads = [threading.Thread(target=worker) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(shared.by) == {"ours", "sdk", "initphp", "go"}
    assert shared.abandoned > 0
    with Redis(port=redis_server.port) as client:
        assert Counter(client.lrange(shared.processing, 0, -1)) == shared.left
        assert client.llen(queue) == 0
        assert client.keys(f"{queue}*") == [shared.processing.encode()] * bool(shared.left)
    assert shared.consumed + Counter(unframe(left)[0] for left in shared.left) == Counter(sent)
