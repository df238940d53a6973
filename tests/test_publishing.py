"""One way out: messages are cut into chunks, which a repeat names by the same idempotency keys."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from babelqueue_spark.bindings.batches import HEADERS
from babelqueue_spark.connector import publishing
from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.publishing import in_chunks, publish, publish_parts
from babelqueue_spark.connector.rows.ids import IdSource
from tests.streams import backlog, envelope, outgoing


def test_a_repeat_publishes_nothing_and_other_keys_publish_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with write_options({"url": url}).binding() as binding:
        size = binding.capabilities.publish_batch
        messages = outgoing([envelope(1)] * (size + 5))
        assert publish(binding, "orders", messages, keys=IdSource("run 0")) == size + 5
        parts = [*publish_parts(binding, "orders", messages, keys=IdSource("run 0"))]
        assert parts == [(range(size), 0), (range(size, size + 5), 0)]
        assert publish(binding, "orders", messages.slice(size), keys=IdSource("run 0"), first_row=size) == 0
        assert publish(binding, "orders", messages.slice(size), keys=IdSource("run 1")) == 5
        assert publish(binding, "orders", messages.slice(size)) == 5
    assert backlog(url, "orders") == size + 15


def test_chunks_are_the_same_however_rows_come(tmp_path: Path) -> None:
    table = pa.table({"n": range(25_000)})
    with write_options({"url": f"sqlite:///{tmp_path}/q.db"}).binding() as binding:
        size = binding.capabilities.publish_batch
        cut = [[*in_chunks(table.to_batches(max_chunksize=rows), binding)] for rows in (7_000, 25_000)]
    assert cut[0] == cut[1]
    assert {chunk.num_rows for chunk in cut[0][:-1]} == {size}
    assert [*in_chunks([], binding)] == []


def test_chunks_end_by_bytes_and_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "CHUNK_BYTES", 1_000)
    texts = ["x" * (n * 37 % 400) for n in range(300)] + ["y" * 5_000, "z"]
    table = pa.table(
        {
            "data": pa.array([{"text": text, "n": 1} for text in texts]),
            "headers": pa.array([[("k", "v" * 10)] if text else None for text in texts], HEADERS),
        }
    )
    with write_options({"url": f"sqlite:///{tmp_path}/q.db"}).binding() as binding:
        cut = [[*in_chunks(table.to_batches(max_chunksize=rows), binding)] for rows in (1, 7, 302)]
    assert cut[0] == cut[1] == cut[2]
    assert pa.Table.from_batches(cut[0]) == table.combine_chunks()
    sizes = [sum(len(row["text"]) for row in chunk["data"].to_pylist()) for chunk in cut[0]]
    assert max(size for size in sizes if size != 5_000) <= 1_000
    assert len(sizes) < 100
