"""The job recover: claims of dead readers on Redis, back to their queue."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.bindings.redis_peers import binding, bodies, outgoing
from tests.jobs.conftest import Run
from tests.servers import RedisServer
from tests.streams import publish

pytestmark = pytest.mark.server


def test_lapsed_claims_go_back(redis_server: RedisServer, queue: str, run: Run) -> None:
    with binding(redis_server, visibility=0) as dead, binding(redis_server) as alive:
        dead.publish(queue, outgoing([b"1", b"2", b"3"]))
        alive.publish(f"{queue}-2", outgoing([b"4"]))
        claimed = dead.claim(queue, 3, 1 << 20)
        alive.claim(f"{queue}-2", 1, 1 << 20)
        dead.acknowledge(queue, claimed.slice(1, 1))
        done = run("recover", "--url", redis_server.url, "--queue", f"{queue},{queue}-2")
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines() == [
            f"{queue}: 2 messages returned",
            f"{queue}-2: 0 messages returned",
        ]
        assert bodies(next(alive.browse(queue))) == [b"1", b"3"]
    with Redis(port=redis_server.port) as client:
        assert client.keys(f"{queue}:*") == []


def test_messages_without_a_deadline_are_told_and_return_later(
    redis_server: RedisServer, queue: str, run: Run
) -> None:
    words = ("recover", "--url", redis_server.url, "--queue", queue, "--option", "redis.reclaim_idle=0.001")
    with Redis(port=redis_server.port) as client:
        client.rpush(f"{queue}:processing", b"php")
        done = run(*words)
        assert done.out == f"{queue}: 0 messages returned, 1 in flight without a deadline\n"
        client.delete(f"{queue}:processing:looked")
        assert run(*words).out == f"{queue}: 1 messages returned\n"
        assert client.lrange(queue, 0, -1) == [b"php"]


def test_laravels_layout_needs_it_not(redis_server: RedisServer, queue: str, run: Run) -> None:
    done = run("recover", "--url", redis_server.url, "--queue", queue, "--option", "redis.laravel=true")
    assert done.code == 1
    assert "Laravel's workers return lapsed claims" in done.err


def test_other_brokers_need_it_not(sqlite: str, queue: str, run: Run) -> None:
    publish(sqlite, queue, [b"1"])
    done = run("recover", "--url", sqlite, "--queue", queue)
    assert (done.code, done.out) == (1, "")
    assert "broker 'sql' returns lapsed claims by itself" in done.err
