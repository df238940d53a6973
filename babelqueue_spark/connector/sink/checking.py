"""All rows of a task are checked before the first is sent; they wait in a temporary file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import pyarrow as pa


@contextmanager
def checked_first(
    batches: Iterable[pa.RecordBatch], check: Callable[[pa.RecordBatch, int], object]
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Give the batches again once `check(batch, first_row)` has passed all; it raises for a bad row."""
    with TemporaryFile() as file:
        writer, row = None, 0
        for batch in batches:
            check(batch, row)
            row += batch.num_rows
            writer = writer or pa.ipc.new_stream(file, batch.schema)
            writer.write_batch(batch)
        if writer is None:
            yield iter(())
            return
        writer.close()
        file.seek(0)
        yield iter(pa.ipc.open_stream(file))
