from __future__ import annotations

from typing import ClassVar

import pytest

from babelqueue_spark.bindings import BindingConfig, LogBinding
from babelqueue_spark.bindings.kinesis import KinesisBinding
from babelqueue_spark.testing import SECRET, Connect, LogContract, joined, outgoing, publish_all
from babelqueue_spark.testing.silence import Verb
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.aws import AwsServer


class TestKinesis(DefaultTimeouts, LogContract):
    """Against moto, with what of AWS it leaves out: offsets have gaps, and only those of records are taken."""

    binding_class = KinesisBinding
    no_queues = ("orders eu", "x" * 129, "ördrs")
    creates_queues = True
    largest_body = 1_048_000
    queue_suffixes = (".v2", "_x", "-eu", ".a.b")
    impatient: ClassVar = {"connect_timeout": "1s", "read_timeout": "1s", "max_attempts": "2"}

    @pytest.fixture
    def config(self, aws_server: AwsServer) -> BindingConfig:
        return BindingConfig(url=aws_server.url)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(
            url="kinesis://eu-west-1?endpoint=http://127.0.0.1:1",
            client_options={"access_key_id": "test", "secret_access_key": SECRET, "max_attempts": "1"},
        )

    def _later_verb(self, binding: LogBinding, queue: str) -> Verb | None:
        """None: no monitor is told anything."""
        return None

    def test_offsets_name_the_same_messages_each_time(self, connect: Connect, queue: str) -> None:
        one, other = connect(), connect()
        publish_all(one, queue, numbered := [b"%d" % number for number in range(100)])
        assert one.beginning_offsets(queue) == {0: 0}
        [offsets] = [
            [int(name.partition(":")[2]) for name in batch.column("id").to_pylist()]
            for batch in one.read(queue, 0, 0, one.end_offsets(queue)[0])
        ]
        assert one.end_offsets(queue) == {0: offsets[-1]}
        for reader in (one, other, one):
            middle = joined(reader.read(queue, 0, offsets[19], offsets[69]))
            assert middle.column("body").to_pylist() == numbered[20:70]
        assert joined(one.read(queue, 0, offsets[19], offsets[19])).num_rows == 0
        assert one.backlog(queue) == 100

    def test_a_batch_reaches_as_far_as_so_many_messages(self, binding: LogBinding, queue: str) -> None:
        binding.publish(queue, outgoing([b"%d" % number for number in range(10)]))
        [middle] = binding.next_offsets(queue, {0: 0}, 4).values()
        assert joined(binding.read(queue, 0, 0, middle)).num_rows == 4
        [end] = binding.next_offsets(queue, {0: middle}, 100).values()
        assert joined(binding.read(queue, 0, middle, end)).num_rows == 6
        assert binding.next_offsets(queue, {0: end}, 100) == {0: end}
