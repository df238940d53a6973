"""Which dead letters go without their block: those that it makes too large, and no others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.sqs import SqsBinding
from babelqueue_spark.connector.rows.size_limits import within_bounds
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.forms import ENVELOPES
from tests.streams import outgoing


class Unreachable(SqsBinding):
    """A queue whose limit cannot be asked for now."""

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        raise BrokerError(f"{queue}, {messages.num_rows}: it cannot be reached")


def limited(kind: type[SqsBinding] = SqsBinding) -> SqsBinding:
    return kind(BindingConfig(url="sqs://eu-west-1", client_options={"max_message_bytes": "10"}))


def bounded(bodies: list[bytes], received: list[bytes | None], binding: SqsBinding) -> list[bytes]:
    targets = [f"queue-{row % 2}" for row in range(len(bodies))]
    kept = within_bounds(outgoing(bodies), pa.array(received, pa.binary()), targets, binding, ENVELOPES)
    found: list[bytes] = kept.column("body").to_pylist()
    return found


@pytest.mark.parametrize(
    ("body", "received", "goes"),
    [
        (b"x" * 11, b"x" * 10, b"x" * 10),
        (b"x" * 10, b"x" * 9, b"x" * 10),
        (b"x" * 11, None, b"x" * 11),
        (b"x" * 11, b"x" * 11, b"x" * 11),
    ],
    ids=["too large", "just fits", "no dead letter", "has no block"],
)
def test_a_message(body: bytes, received: bytes | None, goes: bytes) -> None:
    assert bounded([body], [received], limited()) == [goes]


def test_messages_of_several_queues_keep_their_order() -> None:
    bodies = [b"a" * 12, b"b" * 5, b"c" * 12, b"d" * 12]
    received = [b"a", b"b", None, b"d"]
    assert bounded(bodies, received, limited()) == [b"a", b"b" * 5, b"c" * 12, b"d"]


def test_nothing_at_all() -> None:
    assert bounded([], [], limited()) == []


def test_a_limit_that_cannot_be_asked_for_changes_nothing() -> None:
    assert bounded([b"x" * 11], [b"x"], limited(Unreachable)) == [b"x" * 11]
