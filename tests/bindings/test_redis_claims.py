"""Claims that are lists of their own: what is left of them, who gives them back, and those of the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from redis import Redis
from redis.crc import key_slot

from babelqueue_spark.bindings import DELIVERIES
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.journal import Journal, SegmentContent
from tests.bindings.redis_peers import (
    NO_LIMIT,
    Clock,
    binding,
    bodies,
    claims_of,
    envelope,
    in_flight,
    outgoing,
    sdk,
    sdk_claim,
)
from tests.servers import RedisServer
from tests.source.test_claiming import attempt

pytestmark = pytest.mark.server


@pytest.fixture
def reader(redis_server: RedisServer, clock: Clock) -> Iterator[RedisBinding]:
    """A reader whose claims lapse after ten seconds of the clock."""
    with binding(redis_server, visibility=10) as made:
        yield made


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + b" " * size for number in range(count)]


def claimed_by(reader: RedisBinding, queue: str, messages: int) -> pa.RecordBatch:
    reader.publish(queue, outgoing(numbered(messages)))
    return reader.claim(queue, messages, NO_LIMIT)


class TestKeys:
    def test_a_claim_is_a_list_and_one_deadline(
        self, reader: RedisBinding, redis: Redis, queue: str, clock: Clock
    ) -> None:
        claimed = claimed_by(reader, queue, 5)
        [(token, lapses, stored)] = claims_of(redis, queue)
        assert (lapses, stored) == (int(clock.now) + 10, bodies(claimed))
        assert set(redis.keys(f"{queue}*")) == {
            f"{queue}:processing:claims".encode(),
            f"{queue}:processing:".encode() + token,
        }
        assert reader.acknowledge(queue, claimed).to_pylist() == [True] * 5
        assert redis.keys(f"{queue}*") == []

    def test_a_queue_with_a_hash_tag_has_all_keys_in_its_slot(
        self, reader: RedisBinding, redis: Redis, queue: str
    ) -> None:
        claimed_by(reader, f"{{{queue}}}", 3)
        assert {key_slot(key) for key in redis.keys(f"*{queue}*")} == {key_slot(queue.encode())}

    def test_an_empty_queue_leaves_no_key(self, reader: RedisBinding, redis: Redis, queue: str) -> None:
        assert reader.claim(queue, 10, NO_LIMIT).num_rows == 0
        assert redis.keys(f"{queue}*") == []


class TestBytes:
    def test_what_was_claimed_beyond_the_bytes_goes_back_in_its_order(
        self, reader: RedisBinding, redis: Redis, queue: str
    ) -> None:
        """Large messages behind small ones, which make the script expect small ones only."""
        sent = numbered(1_000) + numbered(5, size=200_000) + numbered(20_000)
        reader.publish(queue, outgoing(sent))
        first = reader.claim(queue, 1_500, 500_000)
        assert bodies(first) == sent[:1_002]
        assert redis.lrange(queue, 0, -1) == sent[1_002:]
        assert reader.acknowledge(queue, first).true_count == 1_002
        assert redis.keys(f"{queue}*") == [queue.encode()]

    def test_large_messages_are_not_copied_unread(
        self, reader: RedisBinding, redis: Redis, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given_back = []
        monkeypatch.setattr(RedisBinding, "release", lambda *_: given_back.append(1))
        sent = numbered(400) + numbered(30, size=1 << 20) + numbered(30_000)
        reader.publish(queue, outgoing(sent))
        assert bodies(reader.claim(queue, 2_000, 8 << 20)) == sent[:407]
        assert not given_back

    def test_a_large_head_before_many_small_messages_is_not_copied(
        self, reader: RedisBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given_back = []
        monkeypatch.setattr(RedisBinding, "release", lambda *_: given_back.append(1))
        sent = numbered(300, size=100_000) + numbered(50_000)
        reader.publish(queue, outgoing(sent))
        assert bodies(reader.claim(queue, 300, 3_050_000)) == sent[:30]
        assert not given_back

    def test_a_user_without_rights_to_copy_reads(self, queue: str) -> None:
        with RedisServer() as server, binding(server) as writer, Redis(port=server.port) as admin:
            writer.publish(queue, outgoing(numbered(10)))
            admin.execute_command("ACL", "SETUSER", "default", "-sort", "-memory")
            claimed = writer.claim(queue, 10, NO_LIMIT)
            assert bodies(claimed) == numbered(10)
            assert writer.acknowledge(queue, claimed).true_count == 10


class TestParts:
    @pytest.mark.parametrize("picked", [[0], [5], [2, 3], [5, 0], [4, 2, 0], [0, 1, 2, 4, 5], [3, 3]])
    def test_what_is_acknowledged_singly_does_not_come_back(
        self, reader: RedisBinding, redis: Redis, queue: str, clock: Clock, picked: list[int]
    ) -> None:
        claimed = claimed_by(reader, queue, 6)
        mask = reader.acknowledge(queue, claimed.take(picked)).to_pylist()
        assert mask == [row not in picked[:at] for at, row in enumerate(picked)]
        left = [body for row, body in enumerate(bodies(claimed)) if row not in picked]
        assert in_flight(redis, queue) == sorted(left)
        clock.now += 10
        again = reader.claim(queue, 10, NO_LIMIT)
        assert bodies(again) == left
        assert reader.acknowledge(queue, claimed).to_pylist() == [False] * 6
        assert reader.acknowledge(queue, again).true_count == len(left)
        assert redis.keys(f"{queue}*") == []

    def test_the_rest_is_released_in_its_order(self, reader: RedisBinding, redis: Redis, queue: str) -> None:
        claimed = claimed_by(reader, queue, 8)
        reader.publish(queue, outgoing([b"later"]))
        reader.acknowledge(queue, claimed.take([1, 2, 6]))
        reader.release(queue, claimed.slice(4))
        assert redis.lrange(queue, 0, -1) == [b"4", b"5", b"7", b"later"]
        reader.release(queue, claimed)
        assert redis.lrange(queue, 0, -1) == [b"0", b"3", b"4", b"5", b"7", b"later"]
        assert redis.keys(f"{queue}*") == [queue.encode()]

    def test_every_other_row_of_several_claims(self, reader: RedisBinding, redis: Redis, queue: str) -> None:
        claimed = claimed_by(reader, queue, 9_000)
        even = claimed.take(list(range(0, 9_000, 2)))
        assert reader.acknowledge(queue, even).true_count == 4_500
        assert reader.acknowledge(queue, claimed).to_pylist() == [False, True] * 4_500
        assert redis.keys(f"{queue}*") == []


class TestLapsed:
    def test_the_backlog_counts_messages(self, reader: RedisBinding, queue: str, clock: Clock) -> None:
        claimed = claimed_by(reader, queue, 5_000)
        assert reader.backlog(queue) == 0
        reader.acknowledge(queue, claimed.slice(0, 500))
        clock.now += 10
        assert reader.backlog(queue) == 4_500

    def test_one_script_moves_so_many_messages_and_the_rest_is_still_held(
        self, reader: RedisBinding, redis: Redis, queue: str, clock: Clock
    ) -> None:
        reader.layout.migration_limit = 700
        claimed = claimed_by(reader, queue, 1_000)
        clock.now += 10
        assert reader.claim(queue, 0, NO_LIMIT).num_rows == 0
        reader.layout.claim(queue, 0, NO_LIMIT, 0)
        assert redis.llen(queue) == 700
        assert reader.backlog(queue) == 1_000
        assert reader.acknowledge(queue, claimed).to_pylist() == [False] * 700 + [True] * 300
        assert redis.keys(f"{queue}*") == [queue.encode()]

    def test_one_script_moves_so_many_bytes(
        self, reader: RedisBinding, redis: Redis, queue: str, clock: Clock
    ) -> None:
        sent = numbered(40, size=1 << 20)
        reader.publish(queue, outgoing(sent))
        reader.claim(queue, 40, NO_LIMIT)
        clock.now += 10
        reader.layout.claim(queue, 0, NO_LIMIT, 0)
        assert 1 <= redis.llen(queue) <= 32
        assert bodies(reader.claim(queue, 40, NO_LIMIT)) == sent

    def test_two_recoverers_at_once_give_back_each_message_once(
        self, redis_server: RedisServer, reader: RedisBinding, redis: Redis, queue: str, clock: Clock
    ) -> None:
        reader.publish(queue, outgoing(numbered(9_000)))
        while reader.claim(queue, 100, NO_LIMIT).num_rows:
            pass
        clock.now += 10

        def recover(_: int) -> int:
            with binding(redis_server) as other:
                other.layout.migration_limit = 150
                return other.recover(queue)

        with ThreadPoolExecutor(2) as pool:
            assert sum(pool.map(recover, range(2))) == 9_000
        assert sorted(redis.lrange(queue, 0, -1)) == sorted(numbered(9_000))
        assert redis.keys(f"{queue}*") == [queue.encode()]

    def test_recover_goes_on_past_claims_whose_messages_are_gone(
        self, reader: RedisBinding, redis: Redis, queue: str, clock: Clock
    ) -> None:
        reader.layout.migration_limit = 5
        redis.zadd(f"{queue}:processing:deadlines", {f"{number:032}:gone": 1 for number in range(7)})
        claimed_by(reader, queue, 3)
        clock.now += 1_000_000
        assert reader.recover(queue) == 3
        assert redis.keys(f"{queue}*") == [queue.encode()]

    def test_recover_gives_back_what_lapsed_and_nothing_else(
        self, redis_server: RedisServer, reader: RedisBinding, redis: Redis, queue: str, clock: Clock
    ) -> None:
        peer = sdk(redis_server, clock, retry_after=10)
        peer.publish(queue, "sdk")
        assert peer.pop(queue, 0)
        claimed_by(reader, queue, 3)
        with binding(redis_server, retry_after="null") as patient:
            patient.publish(queue, outgoing([b"held"]))
            patient.claim(queue, 1, NO_LIMIT)
        redis.rpush(f"{queue}:processing", b"php")
        assert reader.recover(queue) == 0
        clock.now += 1_000_000
        assert reader.recover(queue) == 4
        assert redis.lrange(queue, 0, -1) == [b"sdk", b"0", b"1", b"2"]
        assert redis.lrange(f"{queue}:processing", 0, -1) == [b"php"]
        assert in_flight(redis, queue) == [b"held"]

    def test_laravels_workers_recover(self, redis_server: RedisServer, queue: str) -> None:
        with binding(redis_server, laravel="1") as reader, pytest.raises(BrokerError, match="workers"):
            reader.recover(queue)


class TestClaimsOfTheSdk:
    """Claims in the form of the SDK, and in a journal."""

    HEADERS = (None, {"h": "1"}, None)

    @pytest.fixture
    def sent(self, reader: RedisBinding, queue: str) -> list[bytes]:
        sent = [envelope(1), envelope(2), b""]
        reader.publish(queue, outgoing(sent, self.HEADERS))
        return sent

    def test_its_claims_come_back_under_the_same_names(
        self, reader: RedisBinding, redis: Redis, queue: str, clock: Clock, sent: list[bytes]
    ) -> None:
        theirs = sdk_claim(redis, queue, int(clock.now) + 10)
        assert reader.claim(queue, 10, NO_LIMIT).num_rows == 0
        clock.now += 10
        assert reader.backlog(queue) == 3
        again = reader.claim(queue, 10, NO_LIMIT)
        assert bodies(again) == sent
        assert reader.identities(again) == reader.identities(theirs)
        assert reader.acknowledge(queue, theirs).to_pylist() == [False] * 3
        assert reader.acknowledge(queue, again).to_pylist() == [True] * 3
        assert redis.keys(f"{queue}*") == []

    def test_its_receipts_acknowledge_and_release(
        self, reader: RedisBinding, redis: Redis, queue: str, clock: Clock, sent: list[bytes]
    ) -> None:
        theirs = sdk_claim(redis, queue, int(clock.now) + 10)
        reader.publish(queue, outgoing([b"ours"]))
        ours = reader.claim(queue, 10, NO_LIMIT)
        mixed = pa.concat_batches([theirs.slice(0, 1), ours, theirs.slice(1, 1)])
        assert reader.acknowledge(queue, mixed).to_pylist() == [True] * 3
        reader.release(queue, theirs)
        assert redis.lrange(queue, 0, -1) == [sent[2]]
        assert redis.keys(f"{queue}*") == [queue.encode()]

    def test_a_segment_that_it_journalled_is_acknowledged(
        self, redis_server: RedisServer, redis: Redis, queue: str, tmp_path: Path
    ) -> None:
        sent = self._publish(redis_server, queue)
        with binding(redis_server) as now:
            theirs = sdk_claim(redis, queue, int(now.now()) + 60)
            location = self._journalled(theirs, queue, tmp_path, now.now() + 59)
        assert attempt(redis_server.url, queue, location, 0) == sent
        assert redis.keys(f"{queue}*") == []

    def test_redeliveries_of_what_it_journalled_are_recognised(
        self, redis_server: RedisServer, redis: Redis, queue: str, tmp_path: Path
    ) -> None:
        self._publish(redis_server, queue)
        with binding(redis_server) as now:
            theirs = sdk_claim(redis, queue, int(now.now()) - 60)
            location = self._journalled(theirs, queue, tmp_path, now.now() - 61)
            now.publish(queue, outgoing([b"new"]))
        assert attempt(redis_server.url, queue, location, 0, batch=2) == [b"new"]
        assert redis.keys(f"{queue}*") == []

    def _publish(self, server: RedisServer, queue: str) -> list[bytes]:
        sent = [envelope(number) for number in range(3)]
        with binding(server) as writer:
            writer.publish(queue, outgoing(sent, self.HEADERS))
        return sent

    def _journalled(self, claimed: pa.RecordBatch, queue: str, folder: Path, lapses_at: float) -> str:
        journal = Journal(str(folder / "journal"))
        assert journal.id
        journal.record_plan(1, {})
        mask = pa.repeat(pa.scalar(False), claimed.num_rows)
        assert journal.segment(1, 0).write(SegmentContent([(queue, claimed)], [mask], lapses_at), DELIVERIES)
        return journal.location
