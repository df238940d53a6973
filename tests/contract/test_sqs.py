from __future__ import annotations

import ssl
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.sqs import SqsBinding
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing import (
    MIB,
    SECRET,
    BindingContract,
    Connect,
    assert_empty,
    await_backlog,
    claim_some,
    claim_until_empty,
    outgoing,
    publish_all,
    take,
)
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.certificates import Certificates
from tests.servers.elasticmq import LIMIT, ElasticMqServer


class TestSqs(DefaultTimeouts, BindingContract):
    """Bodies are text of XML characters here, and names of queues and headers are plain ASCII."""

    binding_class = SqsBinding
    no_queues = ("orders eu", "orders.dlq", "x" * 81, ".fifo", "ördrs", "arn:aws:sns:eu-west-1:1:orders")
    creates_queues = True
    bodies = (
        b'{"job":"urn:babel:orders:created","data":{}}',
        b"not json",
        "ünïcödé 注文 \U0001f4e6".encode(),
        b" leading and trailing space \r\n",
        b"<&>\"'\t",
    )
    largest_body = LIMIT
    queue_suffixes: Sequence[str] = ("-eu", "_v2", "-dlq", "0", "-A")
    impatient: ClassVar = {"connect_timeout": "1s", "read_timeout": "1s", "max_attempts": "2"}

    @pytest.fixture
    def secure(
        self, certificates: Certificates, config: BindingConfig, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[ssl.SSLContext, BindingConfig]:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.ca))
        return certificates.context(), replace(config, url=config.url.replace("http%3A", "https%3A"))

    @pytest.fixture
    def config(self, elasticmq_server: ElasticMqServer) -> BindingConfig:
        return BindingConfig(url=elasticmq_server.url, visibility_timeout=60)

    @pytest.fixture
    def heir(self, connect: Connect) -> Any:
        """Make a binding that is in no haste: what it acknowledges after its claim's own time is false."""
        return connect()

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(
            url="sqs://elasticmq?endpoint=http://127.0.0.1:1",
            client_options={"access_key_id": "test", "secret_access_key": SECRET, "max_attempts": "1"},
        )

    def test_headers_travel_where_the_broker_keeps_them(self, binding: Binding, queue: str) -> None:
        """With names that can be attributes; `tests/bindings/test_sqs.py` shows what becomes of others."""
        headers = {"bq-job": "urn:babel:x", "trace.parent_1": "wert 注"}
        binding.publish(queue, outgoing([b"with", b"without"], headers=[headers, None]))
        claimed = take(binding, queue, 2)
        columns = (claimed.column(name).to_pylist() for name in ("body", "headers"))
        got = dict(zip(*columns, strict=True))
        assert dict(got[b"with"]) == headers
        assert got[b"without"] is None


class TestSqsFifo(TestSqs):
    """All messages in one group, of which SQS gives out no more until those in flight are settled.

    So the tests that hold one claim while they make another settle the first before; and equal bodies
    without a `meta.id` are one message.
    """

    unreachable_error = BrokerError  # the suite asks for a queue whose name is not a FIFO queue's

    @pytest.fixture
    def config(self, elasticmq_server: ElasticMqServer) -> BindingConfig:
        options = {"fifo": "1", "group_id": "all"}
        return BindingConfig(url=elasticmq_server.url, visibility_timeout=60, client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(
            url="sqs://elasticmq?endpoint=http://127.0.0.1:1&fifo=1",
            client_options={"access_key_id": "test", "secret_access_key": SECRET, "max_attempts": "1"},
        )

    @pytest.fixture
    def queue(self) -> str:
        return f"orders-{uuid.uuid4().hex[:12]}.fifo"

    def test_many_messages_of_several_publishes(self, binding: Binding, queue: str) -> None:
        bodies = [f"message {number}".encode() for number in range(300)]
        publish_all(binding, queue, bodies)
        assert claim_until_empty(binding, queue) == bodies

    def test_identical_bodies_are_separate_messages(self, binding: Binding, queue: str) -> None:
        """They are not: within five minutes the second is dropped, as SQS has to be told an id."""
        assert binding.publish(queue, outgoing([b"same"] * 3)) == 3
        assert claim_until_empty(binding, queue) == [b"same"]

    def test_queues_keep_apart_whatever_their_names(self, binding: Binding, queue: str) -> None:
        names = [queue.replace(".fifo", f"{suffix}.fifo") for suffix in self.queue_suffixes]
        for name in names:
            binding.publish(name, outgoing([name.encode()]))
        for name in names:
            assert claim_until_empty(binding, name) == [name.encode()]

    def test_a_claim_is_bounded_by_messages(self, binding: Binding, queue: str) -> None:
        bodies = [b"%d" % number for number in range(10)]
        binding.publish(queue, outgoing(bodies))
        self._assert_bounded(binding, queue, bodies, most=3, messages=3)

    def test_a_claim_is_bounded_by_bytes(self, binding: Binding, queue: str) -> None:
        bodies = [b"%d" % number * 1_000 for number in range(5)]
        binding.publish(queue, outgoing(bodies))
        self._assert_bounded(binding, queue, bodies, most=2, max_bytes=2_500)

    def test_a_message_larger_than_the_bound_is_claimed_alone(self, binding: Binding, queue: str) -> None:
        bodies = [b"x" * 5_000, b"y" * 5_000]
        binding.publish(queue, outgoing(bodies))
        self._assert_bounded(binding, queue, bodies, most=1, max_bytes=1)

    def test_a_claimed_message_is_nobody_elses(self, connect: Connect, queue: str) -> None:
        one, other = connect(), connect()
        bodies = [b"%d" % number for number in range(10)]
        one.publish(queue, outgoing(bodies))
        first = take(one, queue, 4)
        assert other.claim(queue, 10, MIB).num_rows == 0
        one.acknowledge(queue, first)
        assert first.column("body").to_pylist() + claim_until_empty(other, queue) == bodies

    @pytest.mark.parametrize("style", ["babelqueue", "initphp"])
    def test_dead_letters_go_to_a_queue_of_their_own(self, binding: Binding, queue: str, style: Any) -> None:
        """Its name has the suffix before `.fifo`."""
        name = self.binding_class.dead_letter_name(queue, style)
        assert name == queue.replace(".fifo", {"babelqueue": "-dlq.fifo", "initphp": "_failed.fifo"}[style])
        assert binding.publish(name, outgoing([b"dead"])) == 1
        await_backlog(binding, name, 1)
        assert_empty(binding, queue)

    def _assert_bounded(
        self, binding: Binding, queue: str, bodies: Sequence[bytes], *, most: int, **bounds: int
    ) -> None:
        first = claim_some(binding, queue, **bounds)
        assert 1 <= first.num_rows <= most
        binding.acknowledge(queue, first)
        assert first.column("body").to_pylist() + claim_until_empty(binding, queue) == list(bodies)
