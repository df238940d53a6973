"""What every binding of a log promises."""

from __future__ import annotations

import time
from collections import Counter
from typing import ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import DELIVERIES, LogBinding
from babelqueue_spark.errors import DataLossError
from babelqueue_spark.testing.common import Contract
from babelqueue_spark.testing.silence import Verb
from babelqueue_spark.testing.steps import Connect, assert_safe, eventually, joined, outgoing, publish_all


class LogContract(Contract):
    """Tests of a log's binding against its real server, where a new topic has one partition."""

    binding_class: ClassVar[type[LogBinding]]
    verbs = (
        lambda binding: binding.end_offsets("orders"),
        lambda binding: list(binding.read("orders", 0, 0, 1)),
    )

    @staticmethod
    def reading(binding: LogBinding, queue: str) -> list[pa.RecordBatch]:
        return list(binding.browse(queue))

    def _later_verb(self, binding: LogBinding, queue: str) -> Verb | None:
        binding.publish(queue, outgoing([b"a"]))
        offsets = binding.end_offsets(queue)
        binding.commit_offsets(queue, offsets)
        return lambda binding: binding.commit_offsets(queue, offsets)

    @pytest.fixture(autouse=True)
    def _nothing_was_read(self) -> None:
        self._seen: Counter[str] = Counter()

    def read(self, binding: LogBinding, queue: str, count: int) -> pa.RecordBatch:
        def unread() -> pa.RecordBatch | None:
            rows = joined(binding.browse(queue)).slice(self._seen[queue])
            return rows.slice(0, count) if rows.num_rows >= count else None

        found = eventually(unread)
        self._seen[queue] += count
        return found

    def assert_read(self, binding: LogBinding, queue: str) -> None:
        assert joined(binding.browse(queue)).num_rows == self._seen[queue]

    def test_what_is_read_has_the_schema_of_deliveries(self, binding: LogBinding, queue: str) -> None:
        before = time.time()
        binding.publish(queue, outgoing([b"one", b"two"]))
        found = self.read(binding, queue, 2)
        found.validate(full=True)
        assert found.schema.equals(DELIVERIES)
        assert (found.column("body").null_count, found.column("receipt").null_count) == (0, 2)
        for moment in found.column("enqueued_at").drop_null().to_pylist():
            assert before - 20 <= moment.timestamp() <= time.time() + 20

    def test_offsets_name_the_same_messages_each_time(self, connect: Connect, queue: str) -> None:
        one, other = connect(), connect()
        publish_all(one, queue, numbered := [b"%d" % number for number in range(100)])
        [(partition, first)] = one.beginning_offsets(queue).items()
        assert one.end_offsets(queue) == {partition: first + 100}
        for reader in (one, other, one):
            middle = joined(reader.read(queue, partition, first + 20, first + 70))
            assert middle.column("body").to_pylist() == numbered[20:70]
        assert joined(one.read(queue, partition, first, first)).num_rows == 0
        assert one.backlog(queue) == 100

    def test_a_log_that_nobody_made_is_empty(self, binding: LogBinding, queue: str) -> None:
        assert binding.beginning_offsets(queue) == binding.end_offsets(queue) == {}
        assert binding.backlog(queue) == joined(binding.browse(queue)).num_rows == 0

    def test_offsets_that_were_never_there_are_data_loss(self, binding: LogBinding, queue: str) -> None:
        binding.publish(queue, outgoing([b"one"]))
        with pytest.raises(DataLossError) as caught:
            list(binding.read(queue, 0, 1_000, 1_001))
        assert_safe(caught.value)

    def test_monitors_are_told_how_far_a_reader_is(self, binding: LogBinding, queue: str) -> None:
        binding.publish(queue, outgoing([b"one", b"two"]))
        binding.commit_offsets(queue, binding.end_offsets(queue))
        binding.commit_offsets(queue, binding.end_offsets(queue))
