from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import BaseBinding, BindingConfig
from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.firehose import FirehoseBinding
from babelqueue_spark.testing import SECRET, Contract, outgoing
from babelqueue_spark.testing.silence import Verb
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.aws import AwsServer


class TestFirehose(DefaultTimeouts, Contract):
    """What is published is read from the bucket to which moto delivers it, a line a message."""

    binding_class = FirehoseBinding
    no_queues = ("orders eu", "x" * 65, "ördrs")
    bodies = (
        b'{"job":"urn:babel:orders:created","data":{}}',
        b"not json",
        b"\x00nul\x00inside\x00",
        "ünïcödé 注文 \U0001f4e6".encode(),
        bytes(byte for byte in range(256) if byte not in b"\r\n"),
        b" leading and trailing space ",
    )
    largest_body = 1_000_000
    queue_suffixes = (".v2", "_x", "-eu", ".a.b")
    impatient: ClassVar = {"connect_timeout": "1s", "read_timeout": "1s", "max_attempts": "2"}

    @staticmethod
    def reading(binding: BaseBinding, queue: str) -> Any:
        """It has no such verb."""
        return binding.backlog(queue)

    @pytest.fixture(autouse=True)
    def _server(self, aws_server: AwsServer) -> None:
        self._aws = aws_server
        self._seen: Counter[str] = Counter()

    @pytest.fixture
    def config(self, aws_server: AwsServer) -> BindingConfig:
        return BindingConfig(url=aws_server.firehose_url)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(
            url="firehose://eu-west-1?endpoint=http://127.0.0.1:1",
            client_options={"access_key_id": "test", "secret_access_key": SECRET, "max_attempts": "1"},
        )

    @pytest.fixture
    def queue(self) -> Iterator[str]:
        name = f"orders-{uuid.uuid4().hex[:12]}"
        streams = [name + suffix for suffix in ("", ".dlq", ".failed", *self.queue_suffixes)]
        for stream in streams:
            self._aws.deliver(stream)
        yield name
        for stream in streams:
            self._aws.client("firehose").delete_delivery_stream(DeliveryStreamName=stream)

    def read(self, binding: BaseBinding, queue: str, count: int) -> pa.RecordBatch:
        lines = self._aws.delivered(queue)[self._seen[queue] :][:count]
        assert len(lines) == count
        self._seen[queue] += count
        return deliveries(count, body=lines)

    def assert_read(self, binding: BaseBinding, queue: str) -> None:
        assert len(self._aws.delivered(queue)) == self._seen[queue]

    def _later_verb(self, binding: BaseBinding, queue: str) -> Verb | None:
        return None

    @pytest.mark.parametrize("style", ["babelqueue", "initphp"])
    def test_dead_letters_go_to_a_queue_of_their_own(self, binding: Any, queue: str, style: Any) -> None:
        name = self.binding_class.dead_letter_name(queue, style)
        assert binding.publish(name, outgoing([b"dead"])) == 1
        assert (binding.backlog(name), self._aws.delivered(name)) == (0, [b"dead"])
        self.assert_read(binding, queue)

    def test_a_line_break_between_tokens_becomes_a_space(self, binding: Any, queue: str) -> None:
        binding.publish(queue, outgoing([b'{\r\n"job": "x"\n}']))
        assert self._aws.delivered(queue) == [b'{  "job": "x" }']
