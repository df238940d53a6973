"""What holds of messages without our envelope, on each broker: they come back as they were, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import OUTGOING, BaseBinding, Binding, LogBinding
from babelqueue_spark.connector.options import Options, write_options
from babelqueue_spark.connector.publishing import publish
from babelqueue_spark.connector.rows.carriers import carried_headers, carrier_of
from babelqueue_spark.connector.rows.dead_letters import dead_letter_blocks
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.connector.rows.writing import to_messages
from babelqueue_spark.errors import BabelQueueError
from babelqueue_spark.forms import Parts

DATA = ['{ "order_id": 1 }', "[1, 2.50]", '"a text"', "null"]
TRACE = "5f0c1c0e-1d6b-4d52-9d4b-0b8a0c7f6d11"


def options_for(queue: str, form: str = "babelqueue") -> Options:
    """Return the options of a write to a queue, whatever its broker."""
    return write_options({"url": "sqlite:////unused.db", "queue": queue, "envelope": form})


class FormContract:
    """Messages in the forms of the option `envelope`, beside ours."""

    read: Callable[[Any, str, int], pa.RecordBatch]

    @pytest.mark.parametrize("form", ["none", "cloudevents", "cloudevents-binary"])
    def test_messages_of_other_forms_come_back_and_are_retried_dead_lettered_and_redriven(
        self, connect: Any, queue: str, form: str
    ) -> None:
        binding = connect(native=True)
        options = options_for(queue, form)
        carrier = carrier_of(binding)
        if form == "cloudevents-binary" and not carrier.names:
            with pytest.raises(BabelQueueError, match="envelope=cloudevents"):
                self._write(binding, options)
            return
        self._write(binding, options)
        read = self.read(binding, queue, len(DATA))
        self._assert_rows(read, binding, options, attempts=0, reason=None)
        if not isinstance(binding, Binding | LogBinding):
            return  # nothing reads it, so that nothing is retried
        counts = pa.array([2] * len(DATA), pa.int32())
        again = self._passed(options.form.retried(read, counts, carrier), binding, queue)
        self._assert_rows(again, binding, options, attempts=2, reason=None)
        blocks = dead_letter_blocks(
            pa.repeat("failed", len(DATA)),
            original_queues=pa.repeat(queue, len(DATA)),
            attempts=pa.array([3] * len(DATA), pa.int32()),
            errors=pa.array(["grün\n", "", "x" * 900, None]),
        )
        dead = self._passed(options.form.dead_lettered(again, blocks, carrier), binding, queue)
        self._assert_rows(dead, binding, options, attempts=3, reason="failed")
        other = binding.dead_letter_name(queue, "babelqueue")  # FIFO queues of SQS know the ids of this one
        back = self._passed(options.form.redriven(dead), binding, other)
        self._assert_rows(back, binding, options, attempts=0, reason=None)
        assert sorted(back.column("body").to_pylist()) == sorted(read.column("body").to_pylist())

    def _write(self, binding: BaseBinding, options: Options) -> None:
        rows = {
            "job": pa.repeat("order.created", len(DATA)),
            "trace_id": pa.repeat(TRACE, len(DATA)),
            "data": pa.array(DATA),
            "meta": pa.array([{"id": f"id-{number}"} for number in range(len(DATA))]),
        }
        batch = pa.RecordBatch.from_pydict(rows)
        for target, messages in to_messages(batch, 0, IdSource("test"), options, binding).items():
            assert publish(binding, target, messages) == len(DATA)

    def _passed(self, parts: Parts, binding: BaseBinding, queue: str) -> pa.RecordBatch:
        """Publish messages and read them."""
        rows = len(parts.bodies)
        beside = [pa.nulls(rows, OUTGOING.field(name).type) for name in ("key", "delay")]
        columns = [parts.bodies, carried_headers(parts.headers, binding), *beside]
        publish(binding, queue, pa.RecordBatch.from_arrays(columns, schema=OUTGOING))
        return self.read(binding, queue, rows)

    def _assert_rows(
        self,
        deliveries: pa.RecordBatch,
        binding: BaseBinding,
        options: Options,
        *,
        attempts: int,
        reason: str | None,
    ) -> None:
        queue = options.queue[0]
        rows = to_rows(deliveries, queue, binding, SCHEMA, options).to_pylist()
        expected = [text.replace(" ", "") for text in DATA]
        assert sorted(row["data"].replace(" ", "") for row in rows) == sorted(expected)
        assert [row["error"] for row in rows] == [None] * len(DATA)
        assert {row["attempts"] for row in rows} == {attempts}
        assert {row["dead_letter"] and row["dead_letter"]["reason"] for row in rows} == {reason}
        if reason:
            assert {row["dead_letter"]["original_queue"] for row in rows} == {queue}
        if carrier_of(binding).names or options.envelope != "none":
            assert {(row["job"], row["trace_id"]) for row in rows} == {("order.created", TRACE)}
            assert {row["meta"]["id"] for row in rows} == {f"id-{number}" for number in range(len(DATA))}
