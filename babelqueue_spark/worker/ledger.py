"""What was decided about the messages of a partition, on shared storage, before any of it is published.

Handlers may decide otherwise when they are asked again. So a decision is written once, and whoever repeats
the task or the batch after a crash publishes what stands there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.errors import JournalError
from babelqueue_spark.journal import open_store

POSTS = pa.schema([("queue", pa.string()), ("dead", pa.bool_()), *OUTGOING])
"""Messages to publish: `OUTGOING`, the queue each goes to, and whether that means its dead-letter queue."""

_BEGUN = "begun.json"
"""A file that is there as long as its batch may be decided about."""


@dataclass(frozen=True)
class Entry:
    """The decisions about one partition.

    Attributes:
        notes: what is not to be published, of JSON's types.
        posts: `POSTS` to publish, in order.
    """

    notes: dict[str, Any]
    posts: pa.RecordBatch = field(
        default_factory=lambda: pa.RecordBatch.from_pylist([], schema=POSTS),
    )


class Ledger:
    """The decisions of one run: a query's, in a folder that its batches share, or of one batch by itself.

    Args:
        location: a directory or fsspec URL that driver and executors share.
        run: the id of the query, or of the run.
        batch: number of the batch within it.
    """

    def __init__(self, location: str, run: str, batch: int) -> None:
        self._store = open_store(location)
        self._run = run
        self._batch = batch

    def begin(self) -> None:
        """Drop what former batches of this run left: they are finished when a new one begins."""
        for name in self._store.names(self._run):
            if name.isdigit() and int(name) < self._batch:
                self._store.remove(f"{self._run}/{name}")
        self._store.create(f"{self._folder}/{_BEGUN}", b"{}")

    def end(self) -> None:
        """Drop all of this run, which nothing can repeat."""
        self._store.remove(self._run)

    def probe(self) -> None:
        """`JournalError` where the storage cannot do what a ledger needs."""
        self._store.probe()

    def read(self, name: str) -> Entry | None:
        """An entry, or None when nobody has written it."""
        file = self._store.read_arrow(self._path(name))
        if file is None:
            return None
        [posts] = file.batches
        return Entry(json.loads(file.metadata[b"notes"]), posts)

    def write(self, name: str, entry: Entry) -> Entry:
        """Write an entry, whole and durable; the one that stands afterwards, which may be another's.

        `JournalError` when the batch is finished: this attempt comes too late to decide anything.
        """
        schema = POSTS.with_metadata({"notes": json.dumps(entry.notes)})
        self._store.create_arrow(self._path(name), [entry.posts], schema)
        if self._store.read(f"{self._folder}/{_BEGUN}") is None:
            self._store.remove(self._folder)
            raise JournalError(
                f"journal {self._store.location}: batch {self._batch} was finished by another attempt, "
                "and this one came too late; nothing of what it decided is published"
            )
        standing = self.read(name)
        if standing is None:
            raise JournalError(f"journal {self._store.location} lost an entry while it was written")
        return standing

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.arrow"

    @property
    def _folder(self) -> str:
        return f"{self._run}/{self._batch:010d}"


def fingerprint(*columns: Sequence[bytes]) -> str:
    """Names rows by what they hold: 32 hex digits. A decision must never stand for other rows."""
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        lengths = np.fromiter(map(len, column), np.int64, len(column))
        digest.update(lengths.tobytes())
        digest.update(b"".join(column))
    return digest.hexdigest()
