"""A delay is checked against what its queue allows, before anything is published."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.errors import BabelQueueError

QUEUES = ["plain", "orders.fifo"]


def written(delays: Any) -> dict[str, list[int | None]]:
    rows = pa.RecordBatch.from_pydict(
        {
            "job": ["urn:x"] * 2,
            "data": ["{}"] * 2,
            "queue": QUEUES,
            "delay": delays if isinstance(delays, pa.Array) else pa.array(delays, pa.float64()),
        }
    )
    options = write_options({"url": "sqs://eu-west-1"})
    with options.binding() as binding:
        found = to_messages(rows, 0, IdSource("run"), options, binding)
    return {queue: messages.column("delay").to_pylist() for queue, messages in found.items()}


@pytest.mark.parametrize("none", [None, 0.0])
def test_a_queue_without_delays_does_not_forbid_those_of_another(none: float | None) -> None:
    assert written([1.5, none]) == {"plain": [1_500], "orders.fifo": [none]}


def test_a_delay_that_its_queue_does_not_have() -> None:
    with pytest.raises(BabelQueueError, match=r"by 0 s at most in 'orders.fifo', but a row asks for 2 s"):
        written([None, 2])


def test_a_delay_that_is_too_long() -> None:
    with pytest.raises(BabelQueueError, match=r"by 900 s at most in 'plain', but a row asks for 901 s"):
        written([901, None])


@pytest.mark.parametrize(
    ("delays", "shown"),
    [
        ([None, -1.5], "-1.5"),
        ([0.0, math.nan], "nan"),
        ([0.0, math.inf], "inf"),
        (pa.array([0, -2]), "-2"),
        (pa.array([None, Decimal("-0.5")]), "-0.5"),
        (pa.array([timedelta(0), timedelta(seconds=-3)]), "-3"),
        (pa.array(["0s", "-4s"]), "-4s"),
        ([0.0, 1e16], r"1e\+16"),
        ([0.0, 1e300], r"1e\+300"),
        (pa.array(["0s", "999999999999999999 s"]), r"1e\+18"),
    ],
)
def test_a_delay_that_is_not_a_time_from_now_on(delays: Any, shown: str) -> None:
    with pytest.raises(
        BabelQueueError, match=f"row 1 has the delay '{shown}', but a delay is a (number|time)"
    ):
        written(delays)
