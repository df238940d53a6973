"""What only Kinesis does: its shards and their parents, limits, refusals of single records, throttling, retention."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.kinesis import KinesisBinding
from babelqueue_spark.bindings.kinesis.binding import CLOSED
from babelqueue_spark.errors import (
    BrokerFullError,
    DataLossError,
    LogEndedError,
    MessageTooLargeError,
    OptionError,
)
from babelqueue_spark.testing import assert_safe, joined, outgoing
from tests.servers.aws import AwsServer

HALF = str(2**127)
MANY = 1_000


@pytest.fixture
def kinesis(aws_server: AwsServer) -> Iterator[KinesisBinding]:
    with KinesisBinding(BindingConfig(url=aws_server.url)) as made:
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause before what is refused is sent again."""
    monkeypatch.setattr("babelqueue_spark.bindings.aws_records._FIRST_PAUSE", 0)


def fill(kinesis: KinesisBinding, queue: str, first: int, last: int, *, keys: int = 7) -> None:
    numbers = range(first, last)
    texts = [f"key-{number % keys}" for number in numbers]
    kinesis.publish(queue, outgoing([b"%d" % number for number in numbers], keys=texts))


def split(aws: AwsServer, queue: str, shard: int = 0, at: str = HALF) -> None:
    aws.client("kinesis").split_shard(
        StreamName=queue, ShardToSplit=f"shardId-{shard:012}", NewStartingHashKey=at
    )


def merge(aws: AwsServer, queue: str, one: int, other: int) -> None:
    aws.client("kinesis").merge_shards(
        StreamName=queue, ShardToMerge=f"shardId-{one:012}", AdjacentShardToMerge=f"shardId-{other:012}"
    )


def rows(
    kinesis: KinesisBinding, queue: str, start: Mapping[int, int], end: Mapping[int, int]
) -> list[tuple[str, int]]:
    """Key and number of each record between two offsets, shard after shard."""
    batches = [
        batch
        for shard, last in end.items()
        for batch in kinesis.read(queue, shard, start.get(shard, 0), last)
    ]
    found = joined(batches)
    return list(zip(found.column("key").to_pylist(), map(int, found.column("body").to_pylist()), strict=True))


def assert_ordered(found: list[tuple[str, int]], expected: range) -> None:
    """Each number once, those of a key in order."""
    assert Counter(number for _, number in found) == Counter(expected)
    for key in {key for key, _ in found}:
        its = [number for each, number in found if each == key]
        assert its == sorted(its)


class TestShards:
    def test_children_are_read_after_their_parents(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str
    ) -> None:
        """Over a split and a merge, in batches that are smaller than a shard: nothing lost, keys in order."""
        fill(kinesis, queue, 0, 70)
        split(aws_server, queue)
        fill(kinesis, queue, 70, 140)
        merge(aws_server, queue, 1, 2)
        fill(kinesis, queue, 140, 210)
        found: list[tuple[str, int]] = []
        offsets: dict[int, int] = {}
        while (end := kinesis.next_offsets(queue, offsets, 30)) != offsets:
            found += rows(kinesis, queue, offsets, end)
            offsets = end
        assert_ordered(found, range(210))
        assert [offsets[shard] == CLOSED for shard in range(4)] == [True, True, True, False]

    def test_a_shard_that_has_expired_holds_its_children_back_no_longer(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str
    ) -> None:
        fill(kinesis, queue, 0, 10)
        split(aws_server, queue)
        fill(kinesis, queue, 10, 20)
        finished = kinesis.next_offsets(queue, {0: 0}, MANY)
        assert finished == {0: CLOSED, 1: 0, 2: 0}
        aws_server.expire(queue, 0)
        end = kinesis.next_offsets(queue, finished, MANY)
        assert end[0] == CLOSED
        assert_ordered(rows(kinesis, queue, {}, {1: end[1], 2: end[2]}), range(10, 20))

    def test_a_browse_reads_parents_first(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str
    ) -> None:
        fill(kinesis, queue, 0, 20)
        split(aws_server, queue)
        fill(kinesis, queue, 20, 40)
        assert_ordered(rows(kinesis, queue, {}, kinesis.end_offsets(queue)), range(40))
        assert kinesis.backlog(queue) == 40

    def test_a_stream_that_a_write_creates_is_on_demand_unless_its_shards_are_counted(
        self, aws_server: AwsServer, queue: str
    ) -> None:
        url = aws_server.url.replace("shard_count=1", "shard_count=3")
        for name, given, shards in ((queue, url, 3), (f"{queue}-x", url.replace("&shard_count=3", ""), 4)):
            with KinesisBinding(BindingConfig(url=given)) as kinesis:
                kinesis.publish(name, outgoing([b"x"]))
                assert len(kinesis.beginning_offsets(name)) == shards


class TestPuts:
    def test_requests_have_500_records_and_5_mb_at_most(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str
    ) -> None:
        """moto refuses larger ones, as AWS does."""
        aws_server.operations.clear()
        assert kinesis.publish(queue, outgoing([b"x" * 100] * 1_001)) == 1_001
        assert kinesis.publish(queue, outgoing([b"x" * 1_000_000] * 11)) == 11
        assert aws_server.operations.count("PutRecords") == 1 + 3 + 3  # the first finds no stream

    def test_refused_records_are_sent_again_and_keys_keep_their_order(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str, quick: None, monkeypatch: Any
    ) -> None:
        turns = iter(range(10**6))
        monkeypatch.setattr(
            aws_server,
            "refuse",
            lambda records: [place for place in range(len(records)) if next(turns) % 3 == 0],
        )
        fill(kinesis, queue, 0, 200, keys=20)
        assert_ordered(rows(kinesis, queue, {}, kinesis.end_offsets(queue)), range(200))

    def test_records_that_are_always_refused_are_an_error(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str, quick: None, monkeypatch: Any
    ) -> None:
        kinesis.publish(queue, outgoing([b"x"]))
        monkeypatch.setattr(aws_server, "refuse", lambda records: range(len(records)))
        with pytest.raises(BrokerFullError, match=r"2 messages were refused 8 times: Provisioned") as caught:
            kinesis.publish(queue, outgoing([b"a", b"b"]))
        assert_safe(caught.value)

    def test_what_is_too_large_is_refused_before_anything_is_sent(
        self, kinesis: KinesisBinding, queue: str
    ) -> None:
        messages = outgoing([b"x", b"x" * (1 << 20)])
        assert kinesis.too_large(queue, messages) == [1]
        with pytest.raises(MessageTooLargeError, match="row 1 has 1,048,608 bytes"):
            kinesis.publish(queue, messages)
        assert kinesis.beginning_offsets(queue) == {}

    @pytest.mark.parametrize("name", ["orders eu", "x" * 129, "ördrs"])
    def test_a_name_that_kinesis_cannot_have_is_refused(self, kinesis: KinesisBinding, name: str) -> None:
        with pytest.raises(OptionError, match="1 to 128 letters"):
            kinesis.check_queue(name)


class TestThrottling:
    def test_reads_and_writes_wait_until_they_are_served(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str, quick: None
    ) -> None:
        fill(kinesis, queue, 0, 10)
        for verb in (lambda: fill(kinesis, queue, 10, 20), lambda: kinesis.backlog(queue)):
            aws_server.throttled = 5
            verb()
            assert aws_server.throttled == 0
        assert kinesis.backlog(queue) == 20


class TestRetention:
    def test_records_that_are_gone_are_data_loss(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str
    ) -> None:
        fill(kinesis, queue, 0, 10)
        middle = kinesis.next_offsets(queue, {0: 0}, 4)
        end = kinesis.end_offsets(queue)
        aws_server.trim(queue, 0, 6)
        with pytest.raises(DataLossError, match=r"shard 0 begins at \d+, and the record \d+") as caught:
            rows(kinesis, queue, middle, end)
        assert_safe(caught.value)
        assert [number for _, number in rows(kinesis, queue, {}, end)] == [6, 7, 8, 9]
        aws_server.trim(queue, 0, 4)
        with pytest.raises(DataLossError, match="shard 0 is empty, and the record"):
            rows(kinesis, queue, middle, end)
        with pytest.raises(LogEndedError, match="shard 0 ends before"):
            rows(kinesis, queue, {}, end)

    def test_a_record_that_was_read_may_go_while_the_stream_is_idle(
        self, aws_server: AwsServer, kinesis: KinesisBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who polls knows that nothing came in between; who has not polled for long does not."""
        fill(kinesis, queue, 0, 10)
        read = kinesis.next_offsets(queue, {0: 0}, MANY)
        aws_server.trim(queue, 0, 10)
        fill(kinesis, queue, 10, 12)
        assert kinesis.next_offsets(queue, read, MANY) != read
        assert kinesis.first_offset(queue, 0, read[0]) == 0
        monkeypatch.setattr(
            "babelqueue_spark.bindings.kinesis.binding.time.monotonic", lambda: time.time() + 10**6
        )
        with KinesisBinding(kinesis.config) as late:
            late.next_offsets(queue, read, MANY)
            assert late.first_offset(queue, 0, read[0]) == read[0]

    def test_a_shard_that_is_gone_before_it_was_read_is_data_loss(
        self, kinesis: KinesisBinding, queue: str
    ) -> None:
        fill(kinesis, queue, 0, 1)
        with pytest.raises(DataLossError, match="shard 7 is gone"):
            rows(kinesis, queue, {}, {7: CLOSED})
