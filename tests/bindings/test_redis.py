"""The Redis binding beside the published SDK and other clients of the same keys."""

from __future__ import annotations

import multiprocessing
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from redis import Redis

from babelqueue_spark.bindings.contract import Binding, BindingConfig
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.bindings.redis.frames import frame, unframe
from babelqueue_spark.errors import BrokerError, BrokerUnreachableError, OptionError, QueueForbiddenError
from tests.bindings.redis_peers import NO_LIMIT, Clock, binding, bodies, envelope, in_flight, outgoing, sdk
from tests.servers import RedisServer

pytestmark = pytest.mark.server

LAYOUTS = ["0", "1"]


def claim(reader: Binding, queue: str, messages: int = 100) -> pa.RecordBatch:
    return reader.claim(queue, messages, NO_LIMIT)


class TestBesideTheSdk:
    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_reads_what_the_sdk_writes(self, redis_server: RedisServer, queue: str, laravel: str) -> None:
        peer = sdk(redis_server, laravel_compat=laravel == "1")
        sent = [envelope(i) for i in range(5)]
        for body in sent:
            peer.publish(queue, body.decode())
        with binding(redis_server, laravel=laravel) as reader:
            claimed = claim(reader, queue)
            assert bodies(claimed) == sent
            assert claimed.column("headers").to_pylist() == [None] * 5
            assert reader.acknowledge(queue, claimed).to_pylist() == [True] * 5

    def test_reads_the_headers_the_sdk_writes(
        self, redis_server: RedisServer, redis: Redis, queue: str
    ) -> None:
        peer = sdk(redis_server)
        sent = [envelope(i) for i in range(3)]
        peer.publish(queue, sent[0].decode())
        peer.publish_with_headers(queue, sent[1].decode(), {"traceparent": "00-a-b-01", "blank": ""})
        peer.publish_with_headers(queue, sent[2].decode(), {"k": 'ü"/\\'})
        with binding(redis_server) as reader:
            for batch in (next(reader.browse(queue)), claim(reader, queue)):
                assert bodies(batch) == sent
                assert batch.column("headers").to_pylist() == [
                    None,
                    [("traceparent", "00-a-b-01")],
                    [("k", 'ü"/\\')],
                ]
            assert reader.acknowledge(queue, batch).to_pylist() == [True] * 3
        assert redis.keys(f"{queue}*") == []

    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_the_sdk_consumes_what_we_write(
        self, redis_server: RedisServer, redis: Redis, queue: str, laravel: str
    ) -> None:
        sent = [envelope(i) for i in range(3)]
        headers = [None, {"traceparent": "00-a-b-01"}, {"empty": ""}]
        with binding(redis_server, laravel=laravel) as writer:
            assert writer.publish(queue, outgoing(sent, headers)) == 3
        peer = sdk(redis_server, laravel_compat=laravel == "1")
        for i, body in enumerate(sent):
            message = peer.pop(queue, 0)
            assert message is not None
            assert message.body.encode() == body
            assert message.headers == ({"traceparent": "00-a-b-01"} if i == 1 and laravel == "0" else {})
            peer.ack(message)
        assert peer.pop(queue, 0) is None
        assert redis.keys(f"*{queue}*") == []

    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_claims_of_the_sdk_are_its_own_until_their_deadline(
        self, redis_server: RedisServer, queue: str, clock: Clock, laravel: str
    ) -> None:
        peer = sdk(redis_server, clock, retry_after=30, laravel_compat=laravel == "1")
        peer.publish(queue, envelope(1).decode())
        message = peer.pop(queue, 0)
        with binding(redis_server, laravel=laravel) as reader:
            clock.now += 29.5
            assert reader.backlog(queue) == 0
            assert claim(reader, queue).num_rows == 0
            clock.now += 1
            assert reader.backlog(queue) == 1
            assert claim(reader, queue).num_rows == 1
        peer.ack(message)  # too late: nothing of ours is touched
        assert peer.pop(queue, 0) is None

    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_our_lapsed_claims_go_to_the_sdk(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock, laravel: str
    ) -> None:
        peer = sdk(redis_server, clock, laravel_compat=laravel == "1")
        with binding(redis_server, visibility=10, laravel=laravel) as reader:
            reader.publish(queue, outgoing([envelope(1)]))
            claimed = claim(reader, queue)
            assert peer.pop(queue, 0) is None
            clock.now += 10
            if laravel == "0":  # the SDK does not know our lists
                assert peer.pop(queue, 0) is None
                assert reader.recover(queue) == 1
            message = peer.pop(queue, 0)
            assert message is not None
            assert reader.acknowledge(queue, claimed).to_pylist() == [False]
            reader.release(queue, claimed)
            assert peer.pop(queue, 0) is None
            peer.ack(message)
        assert redis.keys(f"*{queue}*") == []

    def test_redeliveries_share_their_identity(
        self, redis_server: RedisServer, queue: str, clock: Clock
    ) -> None:
        odd = envelope(3, data={"list": [], "price": 1.10, "big": 12345678901234567, "path": "a/b"})
        for laravel in LAYOUTS:
            with binding(redis_server, visibility=10, laravel=laravel) as reader:
                sent = [envelope(1), odd, b"not json", b"[1]", b"\xff"]
                reader.publish(queue, outgoing(sent, [{"h": "1"}, None, None, None, None]))
                first = claim(reader, queue)
                clock.now += 10
                again = claim(reader, queue)
                assert sorted(reader.identities(again)) == sorted(reader.identities(first))
                assert len(set(reader.identities(first))) == len(sent)
                assert reader.acknowledge(queue, again).to_pylist() == [True] * len(sent)


class TestOtherClients:
    def test_due_delayed_messages_of_initphp_are_delivered(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        redis.zadd(
            f"{queue}:delayed", {b"late": clock.now + 60, b"due": clock.now - 1, b"now": int(clock.now)}
        )
        with binding(redis_server) as reader:
            assert reader.backlog(queue) == 2
            assert bodies(claim(reader, queue)) == [b"due", b"now"]
        assert redis.zrange(f"{queue}:delayed", 0, -1) == [b"late"]

    def test_delayed_messages_lie_where_initphp_looks(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        with binding(redis_server) as writer:
            assert writer.publish(queue, outgoing([b"a", b"b", b"c"], delay=[1500, None, 0])) == 3
        assert redis.zrange(f"{queue}:delayed", 0, -1, withscores=True) == [(b"a", int(clock.now) + 2)]
        assert redis.lrange(queue, 0, -1) == [b"b", b"c"]

    def test_equal_delayed_messages_all_arrive(
        self, redis_server: RedisServer, queue: str, clock: Clock
    ) -> None:
        body = envelope(1)
        with binding(redis_server) as both:
            for seconds in (1, 5, 3):
                sent = outgoing([body] * 4, [None, {"h": "1"}, {"h": "1"}, None], delay=[seconds * 1000] * 4)
                both.publish(queue, sent)
            clock.now += 5
            claimed = claim(both, queue)
            assert bodies(claimed) == [body] * 12
            assert claimed.column("headers").to_pylist().count([("h", "1")]) == 6

    def test_entries_without_a_deadline_stay(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        redis.rpush(f"{queue}:processing", b"php")
        with binding(redis_server) as reader:
            reader.publish(queue, outgoing([b"ours"]))
            claimed = claim(reader, queue)
            assert reader.unowned(queue) == 1
            clock.now += 1_000_000
            assert bodies(claim(reader, queue)) == [b"ours"]
            assert not reader.acknowledge(queue, claimed)[0].as_py()
        assert redis.lrange(f"{queue}:processing", 0, -1) == [b"php"]
        assert in_flight(redis, queue) == [b"ours"]

    def test_reclaim_idle_returns_what_has_lain_there_long_enough(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        redis.rpush(f"{queue}:processing", b"dead", b"dead", b"alive")
        with binding(redis_server, visibility=100_000, reclaim_idle="600") as reader:
            looked = f"{queue}:processing:looked"
            reader.publish(queue, outgoing([b"ours"]))
            assert bodies(claim(reader, queue)) == [b"ours"]
            clock.now += 599
            redis.delete(looked)
            assert claim(reader, queue).num_rows == 0
            redis.lrem(f"{queue}:processing", 1, b"alive")
            clock.now += 1
            redis.delete(looked)
            assert bodies(claim(reader, queue)) == [b"dead"]
            redis.delete(looked)
            assert claim(reader, queue).num_rows == 0
            clock.now += 600
            redis.delete(looked)
            assert bodies(claim(reader, queue)) == [b"dead"]
            assert reader.unowned(queue) == 0
        assert redis.lrange(f"{queue}:processing", 0, -1) == []
        assert in_flight(redis, queue) == [b"dead", b"dead", b"ours"]

    def test_the_poll_of_a_quiet_queue_gives_idle_messages_back(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        redis.rpush(f"{queue}:processing", b"dead")
        with binding(redis_server, reclaim_idle="600") as reader:
            assert reader.backlog(queue) == 0
            clock.now += 600
            redis.delete(f"{queue}:processing:looked")
            assert reader.backlog(queue) == 1
            assert bodies(claim(reader, queue)) == [b"dead"]

    def test_recover_gives_idle_messages_back(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        redis.rpush(f"{queue}:processing", b"dead")
        with binding(redis_server, reclaim_idle="600") as reader:
            assert (reader.recover(queue), reader.unowned(queue)) == (0, 1)
            clock.now += 600
            redis.delete(f"{queue}:processing:looked")
            assert (reader.recover(queue), reader.unowned(queue)) == (1, 0)
        assert redis.lrange(queue, 0, -1) == [b"dead"]

    def test_an_empty_element_comes_back_from_a_dead_reader(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        redis.rpush(queue, b"", b"x")
        with binding(redis_server) as dead, binding(redis_server) as heir:
            assert bodies(claim(dead, queue)) == [b"", b"x"]
            clock.now += 600
            assert sorted(bodies(claim(heir, queue))) == [b"", b"x"]
        assert in_flight(redis, queue) == [b"", b"x"]

    def test_lapsed_deadlines_of_vanished_messages_bring_nothing_back(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        redis.rpush(f"{queue}:processing", b"x", b"y", b"x")
        members = {f"{'a' * 31}{i}:{value}": 1 for i, value in enumerate(["x", "x", "x", "gone"])}
        redis.zadd(f"{queue}:processing:deadlines", {**members, "malformed": 1})
        with binding(redis_server) as reader:
            assert bodies(claim(reader, queue)) == [b"x", b"x"]
        assert redis.lrange(f"{queue}:processing", 0, -1) == [b"y"]
        assert in_flight(redis, queue) == [b"x", b"x"]
        assert not redis.exists(f"{queue}:processing:deadlines")


class TestLaravel:
    def test_bodies_are_raw_and_members_count_the_delivery(
        self, redis_server: RedisServer, redis: Redis, queue: str
    ) -> None:
        body = b'{"job":"urn:a","data":{"list":[],"price":1.10,"big":12345678901234567},"attempts":2}'
        with binding(redis_server, laravel="1", prefix="jobs:") as reader:
            reader.publish(queue, outgoing([body]))
            assert redis.llen(f"jobs:{queue}:notify") == 1
            claimed = claim(reader, queue)
            assert bodies(claimed) == [body]
            [member] = redis.zrange(f"jobs:{queue}:reserved", 0, -1)
            assert b'"attempts":3' in member
            reader.release(queue, claimed)
            assert redis.lrange(f"jobs:{queue}", 0, -1) == [body]
            assert redis.llen(f"jobs:{queue}:notify") == 1

    @pytest.mark.parametrize(
        "body",
        [b"not json", b"[1]", b"", b"\xff\xfe", b'{"attempts":"3"}', b'{"a":1}', b'{"attempts":0,"x":1e400}'],
    )
    def test_poison_is_delivered_and_settled_by_its_exact_bytes(
        self, redis_server: RedisServer, redis: Redis, queue: str, body: bytes
    ) -> None:
        with binding(redis_server, laravel="1") as reader:
            reader.publish(queue, outgoing([body]))
            claimed = claim(reader, queue)
            assert bodies(claimed) == [body]
            assert redis.zrange(f"queues:{queue}:reserved", 0, -1) == [body]
            reader.release(queue, claimed)
            assert reader.acknowledge(queue, claim(reader, queue)).to_pylist() == [True]
        assert redis.keys(f"*{queue}*") == []

    def test_equal_bodies_of_one_claim_are_settled_together(
        self, redis_server: RedisServer, redis: Redis, queue: str
    ) -> None:
        with binding(redis_server, laravel="1") as reader:
            reader.publish(queue, outgoing([envelope(1)] + [b'{"attempts":0}'] * 3))
            claimed = claim(reader, queue)
            assert reader.acknowledge(queue, claimed).to_pylist() == [True] * 4
            assert reader.acknowledge(queue, claimed).to_pylist() == [False] * 4
        assert redis.keys(f"*{queue}*") == []

    def test_never_lapses_when_told_so(self, redis_server: RedisServer, queue: str, clock: Clock) -> None:
        with binding(redis_server, laravel="1", retry_after="null") as reader:
            reader.publish(queue, outgoing([envelope(1)]))
            assert claim(reader, queue).num_rows == 1
            clock.now = 1e12
            assert reader.backlog(queue) == 0
            assert claim(reader, queue).num_rows == 0

    def test_headers_have_no_place(self, redis_server: RedisServer) -> None:
        assert RedisBinding.capabilities.headers
        assert not binding(redis_server, laravel="1").capabilities.headers


class TestSettling:
    def test_messages_return_to_the_head_in_their_order(self, redis_server: RedisServer, queue: str) -> None:
        sent = [b"%d" % i for i in range(4500)]
        for laravel in LAYOUTS:
            with binding(redis_server, laravel=laravel) as reader:
                reader.publish(queue, outgoing(sent))
                reader.release(queue, claim(reader, queue, 4200))
                assert bodies(claim(reader, queue, 4500)) == sent

    def test_equal_copies_lose_one_each(self, redis_server: RedisServer, redis: Redis, queue: str) -> None:
        with binding(redis_server) as reader:
            reader.publish(queue, outgoing([b"x", b"y", b"x", b"x"]))
            first, second = claim(reader, queue, 2), claim(reader, queue, 2)
            assert reader.acknowledge(queue, first).to_pylist() == [True, True]
            assert in_flight(redis, queue) == [b"x", b"x"]
            assert reader.acknowledge(queue, first).to_pylist() == [False, False]
            assert reader.acknowledge(queue, second).to_pylist() == [True, True]
        assert redis.keys(f"{queue}*") == []

    def test_part_of_a_claim_can_be_settled(
        self, redis_server: RedisServer, redis: Redis, queue: str
    ) -> None:
        """Runs of hundreds, gaps, and what was settled before: each message exactly once."""
        with binding(redis_server) as reader:
            reader.publish(queue, outgoing([b"%d" % i for i in range(5000)]))
            claimed = claim(reader, queue, 5000)
            picked = [*range(100, 450), *range(451, 900), 950, *range(1800, 2300), *range(4000, 5000)]
            assert reader.acknowledge(queue, claimed.take(picked)).true_count == len(picked)
            rest = [i for i in range(5000) if i not in set(picked)]
            assert in_flight(redis, queue) == sorted(b"%d" % i for i in rest)
            assert reader.acknowledge(queue, claimed).to_pylist() == [i in set(rest) for i in range(5000)]
        assert redis.keys(f"{queue}*") == []

    def test_runs_of_equal_bodies_are_not_confused(
        self, redis_server: RedisServer, redis: Redis, queue: str
    ) -> None:
        with binding(redis_server) as reader:
            reader.publish(queue, outgoing([b"same"] * 1000))
            claims = [claim(reader, queue, 200) for _ in range(5)]
            both = pa.concat_batches([claims[0], claims[3]])
            assert reader.acknowledge(queue, both).true_count == 400
            assert len(in_flight(redis, queue)) == 600
            assert reader.acknowledge(queue, both).true_count == 0
            rest = pa.concat_batches(claims)
            assert reader.acknowledge(queue, rest).true_count == 600
        assert redis.keys(f"{queue}*") == []

    def test_a_lapsed_run_is_told_message_by_message(
        self, redis_server: RedisServer, redis: Redis, queue: str, clock: Clock
    ) -> None:
        with binding(redis_server, visibility=10) as reader:
            reader.publish(queue, outgoing([b"%d" % i for i in range(600)]))
            lapsed = claim(reader, queue, 300)
            clock.now += 10
            kept = claim(reader, queue, 300)
            assert bodies(kept) == [b"%d" % i for i in range(300, 600)]
            mask = reader.acknowledge(queue, pa.concat_batches([lapsed, kept])).to_pylist()
            assert mask == [False] * 300 + [True] * 300
            assert redis.lrange(queue, 0, -1) == bodies(lapsed)

    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_another_process_acknowledges(
        self, redis_server: RedisServer, redis: Redis, queue: str, laravel: str
    ) -> None:
        with binding(redis_server, laravel=laravel) as reader:
            reader.publish(
                queue, outgoing([envelope(i) for i in range(150)], [{"h": str(i)} for i in range(150)])
            )
            claimed = claim(reader, queue, 150)
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                acknowledged = pool.apply(_acknowledge, (reader.config, queue, claimed))
        assert acknowledged == [True] * 150
        assert redis.keys(f"*{queue}*") == []

    @pytest.mark.parametrize("seed", range(8))
    def test_nothing_is_lost_or_settled_twice(
        self,
        redis_server: RedisServer,
        redis: Redis,
        queue: str,
        clock: Clock,
        seed: int,
    ) -> None:
        """Two of us and the SDK at random, over few distinct bodies and short runs."""
        random = Random(seed)
        peer = sdk(redis_server, clock, retry_after=20)
        published = settled = 0
        with (
            binding(redis_server, visibility=10) as first,
            binding(redis_server, visibility=30) as second,
        ):
            held: list[tuple[RedisBinding, pa.RecordBatch]] = []
            for _ in range(300):
                ours = random.choice([first, second])
                match random.choice(
                    ["publish", "claim", "claim", "acknowledge", "part", "release", "wait", "peer"]
                ):
                    case "publish":
                        batch = [b'{"n":%d}' % random.randrange(4) for _ in range(random.randrange(20))]
                        published += ours.publish(queue, outgoing(batch))
                    case "claim":
                        limit = random.choice([40, NO_LIMIT])
                        held.append((ours, ours.claim(queue, random.randrange(12), limit)))
                    case "acknowledge" if held:
                        batches = [held.pop(random.randrange(len(held)))[1] for _ in range(min(2, len(held)))]
                        settled += ours.acknowledge(queue, pa.concat_batches(batches)).true_count
                    case "part" if held:
                        batch = random.choice(held)[1]
                        rows = random.sample(range(batch.num_rows), batch.num_rows // 2)
                        part = batch.take(pa.array(rows, pa.int64()))
                        if random.random() < 0.3:
                            ours.release(queue, part)
                        else:
                            settled += ours.acknowledge(queue, part).true_count
                    case "release" if held:
                        ours.release(queue, held.pop()[1])
                    case "wait":
                        clock.now += random.randrange(12)
                    case "peer":
                        if message := peer.pop(queue, 0):
                            peer.ack(message)
                            settled += 1
                assert redis.llen(queue) + len(in_flight(redis, queue)) == published - settled
            assert settled > published // 5 > 0


def _acknowledge(config: BindingConfig, queue: str, claimed: pa.RecordBatch) -> list[bool]:
    with RedisBinding(config) as other:
        mask: list[bool] = other.acknowledge(queue, claimed).to_pylist()
        return mask


class TestPublishing:
    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_a_marker_publishes_once(
        self, redis_server: RedisServer, redis: Redis, queue: str, laravel: str
    ) -> None:
        with binding(redis_server, laravel=laravel) as writer:
            batch = outgoing([b"%d" % i for i in range(9000)], delay=[60_000] + [None] * 8999)
            assert writer.publish(queue, batch, idempotency_key="b1") == 9000
            assert writer.publish(queue, batch, idempotency_key="b1") == 0
            assert writer.publish(queue, batch, idempotency_key="b2") == 9000
            assert writer.backlog(queue) == 2 * 8999
            [marker, _] = redis.keys(f"*{queue}:published:*")
            assert 6 * 86400 < redis.ttl(marker) <= 7 * 86400

    def test_bytes_that_are_not_text_travel_with_headers(self, redis_server: RedisServer, queue: str) -> None:
        with binding(redis_server) as both:
            both.publish(queue, outgoing([b'{"a":"\xff\x80"}'], [{"h": "1"}]))
            claimed = claim(both, queue)
            assert bodies(claimed) == [b'{"a":"\xff\x80"}']
            assert both.acknowledge(queue, claimed).to_pylist() == [True]

    def test_max_bytes_bounds_a_claim_but_one_message_always_comes(
        self, redis_server: RedisServer, queue: str
    ) -> None:
        with binding(redis_server) as both:
            both.publish(queue, outgoing([b"x" * size for size in (10, 10, 5000, 10)]))
            assert [len(body) for body in bodies(both.claim(queue, 10, 100))] == [10, 10]
            assert [len(body) for body in bodies(both.claim(queue, 10, 100))] == [5000]
            assert [len(body) for body in bodies(both.claim(queue, 10, 10))] == [10]
            assert both.claim(queue, 0, 10).num_rows == 0
            both.publish(queue, outgoing([b"x" * 100] * 2500))
            assert both.claim(queue, 2500, 200_050).num_rows == 2000

    def test_browse_reads_all_in_order_and_leaves_it(self, redis_server: RedisServer, queue: str) -> None:
        sent = [b"%d" % i for i in range(5000)]
        with binding(redis_server) as both:
            both.publish(queue, outgoing(sent))
            seen = list(both.browse(queue))
            assert len(seen) > 1
            assert [body for batch in seen for body in bodies(batch)] == sent
            assert both.backlog(queue) == 5000


class TestFrames:
    @pytest.mark.parametrize(
        "stored",
        [
            b"",
            b'{"a":"\\"__bq_frame\\""}',
            b'{"x":{"__bq_frame":1,"body":"b"}}',
            b'{"__bq_frame":0,"body":"b"}',
            b'{"__bq_frame":1}',
            b'{"__bq_frame":1,"body":5}',
            b'{"__bq_frame":1,"body":"\\ud800"}',
            b'{"__bq_frame":1,"body":"b"',
            b'["__bq_frame"]',
            b'{"__bq_frame":' + b"[" * 100_000,
        ],
    )
    def test_what_is_no_frame_is_a_body(self, stored: bytes) -> None:
        assert unframe(stored) == (stored, {})

    def test_header_values_become_text_and_blank_ones_go(self) -> None:
        stored = (
            b'{"headers":{"n":1,"t":true,"":"x","e":"","z":null,"s":"\\ud800"},"body":"b","__bq_frame":2}'
        )
        assert unframe(stored) == (b"b", {"n": "1", "t": "True", "s": "\\ud800"})
        assert unframe(b'{"__bq_frame":1,"headers":[],"body":""}') == (b"", {})

    def test_only_usable_headers_make_a_frame(self) -> None:
        assert frame(b"b", {"": "x", "e": ""}) == b"b"
        assert frame(b"b", {"h": "1"}) == b'{"__bq_frame":1,"headers":{"h":"1"},"body":"b"}'


class TestOptions:
    @pytest.mark.parametrize(
        ("url", "options", "message"),
        [
            ("redis://:hush@h/0", {"nonsense": "1"}, "redis.nonsense is unknown: use one of client_name, db"),
            ("redis://h", {"socket_timeot": "1"}, "is unknown: did you mean 'redis.socket_timeout'"),
            ("redis://:hush@h/0?nonsense=1", {}, "redis.nonsense is unknown"),
            ("redis://:hush@h/0", {"ssl_ca_certs": "/ca"}, "needs a URL that starts with rediss://"),
            (
                "redis://:hush@h/0",
                {"socket_timeout": "soon"},
                "redis.socket_timeout has the value 'soon', but takes a time such as '10s'",
            ),
            (
                "redis://:hush@h/0?retry_after=-1",
                {},
                "redis.retry_after has the value '-1', but takes a time",
            ),
            (
                "redis://:hush@h/0",
                {"laravel": "perhaps"},
                "redis.laravel has the value 'perhaps', but takes 'true'",
            ),
            ("redis://:hush@h:x/0", {}, "the Redis URL cannot be read"),
            ("http://:hush@h/0", {}, "the Redis URL cannot be read"),
            ("redis://:hush@h/0?laravel=1", {"reclaim_idle": "5"}, "is for the default layout"),
        ],
    )
    def test_refused(self, url: str, options: dict[str, str], message: str) -> None:
        with pytest.raises(OptionError, match=message) as refused:
            RedisBinding(BindingConfig(url=url, client_options=options))
        assert "hush" not in str(refused.value)

    @pytest.mark.parametrize(
        ("query", "timeout", "lease"),
        [
            ("", None, 89),
            ("?retry_after=5", None, 4),
            ("?retry_after=5", 7.5, 7),
            ("?retry_after=1", None, 0.001),
            ("?retry_after=none", None, float("inf")),
        ],
    )
    def test_visibility(self, query: str, timeout: float | None, lease: float) -> None:
        config = BindingConfig(url=f"redis://h{query}", visibility_timeout=timeout)
        assert RedisBinding(config).lease == lease

    def test_the_sdks_query_and_client_options_work_together(
        self, redis_server: RedisServer, queue: str
    ) -> None:
        url = f"{redis_server.url}?laravel_compat=yes&prefix=p:&socket_timeout=5"
        options = {"client_name": "spark", "health_check_interval": "30", "socket_keepalive": "true"}
        with RedisBinding(BindingConfig(url=url, client_options=options)) as both:
            assert both.publish(queue, outgoing([b"x"])) == 1
            assert both.layout.ready(queue) == f"p:{queue}"
            with Redis(port=redis_server.port) as client:
                assert "spark" in [other["name"] for other in client.client_list()]

    @pytest.mark.parametrize("timeout", [-1.0, float("inf"), float("nan")])
    def test_visibility_out_of_range(self, timeout: float) -> None:
        with pytest.raises(OptionError, match="visibility timeout"):
            RedisBinding(BindingConfig(url="redis://h", visibility_timeout=timeout))

    def test_dead_letter_names(self) -> None:
        assert RedisBinding.dead_letter_name("orders", "babelqueue") == "orders.dlq"
        assert RedisBinding.dead_letter_name("orders", "initphp") == "orders:failed"


class TestTrouble:
    def test_wrong_password(self) -> None:
        with RedisServer(password="s3cret") as server:
            with binding(server) as right:
                assert right.backlog("q") == 0
            for url in (server.url.replace("s3cret", "gu3ss"), f"redis://{server.address}/0"):
                with RedisBinding(BindingConfig(url=url)) as wrong:
                    message = _refusal(wrong, server)
                    assert "refused the login" in message
                    assert "gu3ss" not in message

    def test_unreachable(self) -> None:
        with RedisServer() as server, binding(server) as reader:
            server.stop()
            assert "cannot be reached" in _refusal(reader, server)

    def test_comes_back_with_the_server_and_forgets_its_scripts_gladly(
        self, redis_server: RedisServer, redis: Redis, queue: str
    ) -> None:
        with binding(redis_server) as both:
            both.publish(queue, outgoing([b"1"]))
            redis.script_flush()
            redis.client_kill_filter(_type="normal", skipme=True)
            both.publish(queue, outgoing([b"2"]))
            both.close()
            both.close()
            assert bodies(claim(both, queue)) == [b"1", b"2"]

    def test_not_a_redis(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=_answer_like_http, args=(listener,))
            thread.start()
            config = BindingConfig(url=f"redis://:hush@127.0.0.1:{listener.getsockname()[1]}/0")
            with RedisBinding(config) as reader, pytest.raises(BrokerError, match="does not speak Redis"):
                reader.backlog("q")
            thread.join()

    def test_the_rights_in_the_docs_are_enough(self) -> None:
        with RedisServer() as server:
            with Redis(port=server.port) as admin:
                admin.execute_command("ACL", "SETUSER", "spark", *rights_in_the_docs())
            for query in ("", "?reclaim_idle=1", "?laravel=1"):
                url = f"redis://spark:s3cret@{server.address}/0{query}"
                with RedisBinding(BindingConfig(url=url)) as both:
                    both.publish(
                        "mine", outgoing([b"x"] * 300, delay=[None] * 299 + [60_000]), idempotency_key="m"
                    )
                    both.publish("mine", outgoing([b"x"]), idempotency_key="n")
                    both.release("mine", claimed := claim(both, "mine", 300))
                    assert both.acknowledge("mine", claim(both, "mine", 1)).true_count == 1
                    assert claimed.num_rows == 300
                    assert both.backlog("mine") == 299
                    assert len(list(both.browse("mine"))) == 1
                    both.release("mine", claim(both, "mine", 10))
                    claimed = claim(both, "mine", 299)
                    if "laravel" not in query:
                        assert both.acknowledge("mine", claimed.take([5, 7])).true_count == 2
                        assert both.recover("mine") == 0
                        claimed = claimed.filter([row not in (5, 7) for row in range(299)])
                    assert both.acknowledge("mine", claimed).true_count == claimed.num_rows
                    with pytest.raises(QueueForbiddenError, match="extend its ACL"):
                        both.backlog("other")
                with Redis(port=server.port) as admin:
                    admin.flushall()

    @pytest.mark.parametrize("missing", ["multi", "exec", "eval", "rpush", "ltrim", "set"])
    def test_without_a_right_nothing_is_appended(self, missing: str) -> None:
        with RedisServer() as server, Redis(port=server.port) as admin:
            admin.execute_command("ACL", "SETUSER", "spark", *rights_in_the_docs(), f"-{missing}")
            config = BindingConfig(url=f"redis://spark:s3cret@{server.address}/0")
            for _ in range(2):
                with RedisBinding(config) as writer, pytest.raises(BrokerError):
                    writer.publish("mine", outgoing([b"x"]), idempotency_key="m")
            assert admin.keys() == []

    def test_replica(self) -> None:
        with (
            RedisServer(replicaof="127.0.0.1 1") as server,
            binding(server) as reader,
            pytest.raises(BrokerError, match="read-only replica"),
        ):
            reader.publish("q", outgoing([b"x"]))

    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_key_of_another_kind_changes_nothing(
        self, redis_server: RedisServer, redis: Redis, queue: str, laravel: str
    ) -> None:
        with binding(redis_server, laravel=laravel) as both:
            ready = both.layout.ready(queue)
            redis.rpush(ready, b"kept")
            others = {
                "0": [f"{queue}:processing", f"{queue}:processing:deadlines"],
                "1": [f"{ready}:notify"],
            }
            for key in (both.layout.claims(queue), both.layout.delayed(queue), *others[laravel]):
                redis.set(key, "other")
                with pytest.raises(BrokerError, match="another kind of value"):
                    claim(both, queue)
                assert redis.lrange(ready, 0, -1) == [b"kept"]
                redis.delete(key)
            claimed = claim(both, queue)
            assert redis.lrange(ready, 0, -1) == []
            redis.set(ready, "other")
            with pytest.raises(BrokerError, match="another kind of value"):
                both.release(queue, claimed)
            assert both.acknowledge(queue, claimed).to_pylist() == [True]

    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_what_a_key_of_another_kind_refused_is_published_later(
        self, redis_server: RedisServer, redis: Redis, queue: str, laravel: str
    ) -> None:
        with binding(redis_server, laravel=laravel) as writer:
            ready = writer.layout.ready(queue)
            redis.set(ready, "other")
            for key in (None, "m"):
                with pytest.raises(BrokerError, match="another kind of value") as refused:
                    writer.publish(queue, outgoing([b"secret"]), idempotency_key=key)
                assert "secret" not in str(refused.value)
            redis.delete(ready)
            assert writer.publish(queue, outgoing([b"secret"]), idempotency_key="m") == 1

    def test_a_consumer_that_waits_gets_no_copy_of_a_repeated_chunk(
        self, redis_server: RedisServer, redis: Redis, queue: str
    ) -> None:
        with binding(redis_server) as writer, ThreadPoolExecutor(1) as thread:
            writer.publish(queue, outgoing([b"once"]), idempotency_key="m")
            assert redis.blpop([queue]) == (queue.encode(), b"once")
            with Redis(port=redis_server.port) as consumer:
                waiting = thread.submit(consumer.blpop, [queue])
                while redis.info("clients")["blocked_clients"] == 0:
                    threading.Event().wait(0.01)
                assert writer.publish(queue, outgoing([b"once"]), idempotency_key="m") == 0
                assert writer.publish(queue, outgoing([b"next"]), idempotency_key="n") == 1
                assert waiting.result(timeout=30) == (queue.encode(), b"next")

    @pytest.mark.parametrize("laravel", LAYOUTS)
    def test_a_full_server_refuses_messages_and_can_be_drained(self, laravel: str) -> None:
        with (
            RedisServer(maxmemory="16mb", **{"maxmemory-policy": "noeviction"}) as server,
            binding(server, laravel=laravel) as both,
        ):
            sent = 0
            with pytest.raises(BrokerError, match="out of memory") as full:
                while True:
                    batch = outgoing([b'{"attempts":0,"n":"%0990d"}' % i for i in range(sent, sent + 1000)])
                    sent += both.publish("q", batch)
            assert "\n" not in str(full.value)
            with pytest.raises(BrokerError, match="out of memory"):
                both.publish("q", batch, idempotency_key="m")
            assert both.backlog("q") == sent
            claimed = claim(both, "q", 1000)
            both.release("q", claimed)
            drained = []
            while (claimed := claim(both, "q", 1000)).num_rows:
                assert both.acknowledge("q", claimed).true_count == claimed.num_rows
                drained += bodies(claimed)
            assert [int(body[23:-2]) for body in drained] == list(range(sent))
            assert both.publish("q", batch, idempotency_key="m") == 1000


def rights_in_the_docs() -> list[str]:
    """Rules of an ACL user."""
    docs = (Path(__file__).parents[2] / "docs" / "brokers" / "redis.md").read_text(encoding="utf-8")
    [commands] = re.findall(r"`(EVAL\s[^`]*)`", docs)
    return [
        *("on", ">s3cret", "~mine*", "~queues:mine*"),
        *(f"+{name.lower()}" for name in commands.split()),
    ]


def _refusal(reader: RedisBinding, server: RedisServer) -> str:
    with pytest.raises(BrokerError) as refused:
        reader.backlog("q")
    message = str(refused.value)
    assert f"] Redis at {server.address}: " in message
    assert "\n" not in message
    return message


def _answer_like_http(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_tls_to_a_port_without_it(redis_server: RedisServer, queue: str) -> None:
    url = redis_server.url.replace("redis://", "rediss://")
    config = BindingConfig(url=url, client_options={"socket_timeout": "1"})
    with (
        RedisBinding(config) as secure,
        pytest.raises(BrokerUnreachableError, match="whether that port has TLS"),
    ):
        secure.backlog(queue)
