"""Ids and idempotency keys that a repeated task gives again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class IdSource:
    """Give the rows of a task the same ids and idempotency keys each time the task runs.

    Attributes:
        text: names query, batch and partition, or the run of a batch write and its partition.
        writer: names what writes one batch after the other, without the batch; empty where nothing does.
    """

    text: str
    writer: str = ""

    def uuids(self, purpose: str, first_row: int, rows: int) -> pa.StringArray:
        """UUIDs (version 8) of consecutive rows."""
        digest = hashlib.blake2b(f"{purpose} {self.text}".encode(), digest_size=10).hexdigest()
        prefix = f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{8 | int(digest[16], 16) & 3:x}{digest[17:]}"
        numbers = np.arange(first_row, first_row + rows, dtype=">u8").view(np.uint8).reshape(rows, 8)
        digits = pa.py_buffer(numbers[:, 2:].tobytes().hex().encode())
        ends = pa.py_buffer(np.arange(0, 12 * rows + 1, 12, dtype=np.int32))
        return pc.binary_join_element_wise(prefix, pa.StringArray.from_buffers(rows, ends, digits), "-")

    def idempotency_key(self, queue: str, first_row: int) -> str:
        """Name the chunk of rows that starts at `first_row` and goes to `queue`: its writer, then itself."""
        names = (f"{text} {first_row} {queue}".encode() for text in (self.writer or self.text, self.text))
        return "".join(hashlib.blake2b(name, digest_size=8).hexdigest() for name in names)
