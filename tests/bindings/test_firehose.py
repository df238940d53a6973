"""What only Firehose does: its limits, and refusals of single records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.firehose import FirehoseBinding
from babelqueue_spark.errors import BrokerFullError, MessageTooLargeError
from babelqueue_spark.testing import assert_safe, outgoing
from tests.servers.aws import AwsServer

LARGEST = 1_000 * 1_024 - 1
"""Bytes of a body; the end of its line is one more."""


@pytest.fixture
def firehose(aws_server: AwsServer, queue: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FirehoseBinding]:
    """To a stream that delivers; it does not pause before it sends again what was refused."""
    monkeypatch.setattr("babelqueue_spark.bindings.aws_records._FIRST_PAUSE", 0)
    aws_server.deliver(queue)
    with FirehoseBinding(BindingConfig(url=aws_server.firehose_url)) as made:
        yield made


def test_requests_have_500_records_and_4_mib_at_most(
    aws_server: AwsServer, firehose: FirehoseBinding, queue: str
) -> None:
    aws_server.operations.clear()
    assert firehose.publish(queue, outgoing([b"%d" % number for number in range(1_001)])) == 1_001
    assert aws_server.operations.count("PutRecordBatch") == 3
    assert firehose.publish(queue, outgoing([b"x" * LARGEST] * 5)) == 5
    assert aws_server.operations.count("PutRecordBatch") == 3 + 2
    delivered = aws_server.delivered(queue)
    assert sorted(int(line) for line in delivered if len(line) < 10) == [*range(1_001)]
    assert [len(line) for line in delivered if len(line) >= 10] == [LARGEST] * 5


def test_refused_records_are_sent_again_and_no_others(
    aws_server: AwsServer, firehose: FirehoseBinding, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(range(10**6))

    def every_third(records: list[Any]) -> list[int]:
        return [place for place in range(len(records)) if next(turns) % 3 == 0]

    monkeypatch.setattr(aws_server, "refuse", every_third)
    firehose.publish(queue, outgoing([b"%d" % number for number in range(200)]))
    assert sorted(map(int, aws_server.delivered(queue))) == [*range(200)]


def test_records_that_are_always_refused_are_an_error(
    aws_server: AwsServer, firehose: FirehoseBinding, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws_server, "refuse", lambda records: range(len(records)))
    with pytest.raises(BrokerFullError, match="2 messages were refused 8 times") as caught:
        firehose.publish(queue, outgoing([b"a", b"b"]))
    assert_safe(caught.value)
    assert aws_server.delivered(queue) == []


def test_what_is_too_large_is_refused_before_anything_is_sent(
    aws_server: AwsServer, firehose: FirehoseBinding, queue: str
) -> None:
    messages = outgoing([b"x", b"x" * LARGEST, b"x" * (LARGEST + 1)])
    assert firehose.too_large(queue, messages) == [2]
    with pytest.raises(MessageTooLargeError, match=r"row 2 has 1,024,001 bytes"):
        firehose.publish(queue, messages)
    assert aws_server.delivered(queue) == []
