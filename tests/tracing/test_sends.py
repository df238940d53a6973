"""What handlers returned follows from the spans of its own handlers, whatever its queue."""

from __future__ import annotations

from typing import Any

from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.worker.deciding import Output
from babelqueue_spark.worker.destinations import Destinations
from babelqueue_spark.worker.outgoing import encode_outputs
from babelqueue_spark.worker.partition_spans import by_queue, sends_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENTS = [f"00-{TRACE}-{n:016x}-01" for n in range(1, 5)]
GIVEN = f"00-{TRACE}-{15:016x}-01"


def output(row: int, queue: str | None, **columns: Any) -> Output:
    given = {"job": f"urn:{row}", "data": "{}", "queue": queue, "trace_id": "t", "parent": PARENTS[row]}
    return Output(row, {**given, **columns})


def test_each_message_follows_from_the_handler_that_returned_it() -> None:
    options = write_options({"url": "redis://localhost", "queue": "a"})
    outputs = [
        output(0, "b"),
        output(1, None, headers={"x": "y"}),
        output(1, "b", headers={"traceparent": GIVEN}),
        output(2, "a"),
        output(3, "b"),
    ]
    with options.binding() as binding:
        destinations = Destinations(options, binding)
        encoded, failures = encode_outputs(outputs, IdSource("w"), destinations)
        traced, sends = sends_of(outputs, encoded, destinations)
    assert failures == {}
    grouped = by_queue(sends)
    assert {queue: [send["parent"] for send in of] for queue, of in grouped.items()} == {
        "a": [PARENTS[1], PARENTS[2]],
        "b": [PARENTS[0], PARENTS[3]],
    }
    headers = {
        messages.column("queue")[0].as_py(): [dict(each) for each in messages.column("headers").to_pylist()]
        for messages in traced
    }
    first, second = (send["traceparent"] for send in grouped["a"])
    assert headers["a"] == [{"x": "y", "traceparent": first}, {"traceparent": second}]
    assert headers["b"][1] == {"traceparent": GIVEN}
