"""The log of decisions: verdicts and outgoing messages of a partition, stored before any is published.

A handler that runs twice may decide twice. So an entry is written once, and a task or batch that is repeated
after a crash publishes what the entry holds.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from babelqueue_spark.bindings import OUTGOING
from babelqueue_spark.errors import JournalError, JournalMissingError
from babelqueue_spark.storage import open_store

OUTGOING_MESSAGES = pa.schema(
    [
        ("queue", pa.string()),
        ("dead", pa.bool_()),
        *OUTGOING,
        ("job_id", pa.string()),
        ("send_at", pa.int64()),
    ]
)
"""Messages to publish: `OUTGOING`, the queue of each, and whether its dead-letter queue is meant (`dead`).

With a `job_id` it is for the schedule: to be sent at `send_at`, in microseconds since 1970; without that
time, the job of that name is cancelled.
"""

_BEGUN = "begun.json"
"""A file that is there as long as its batch may be decided about."""


@dataclass(frozen=True)
class LogEntry:
    """The decisions about one partition.

    Attributes:
        notes: what else was decided, of JSON's types.
        messages: `OUTGOING_MESSAGES`, in the order of publishing.
    """

    notes: dict[str, Any]
    messages: pa.RecordBatch = field(
        default_factory=lambda: pa.RecordBatch.from_pylist([], schema=OUTGOING_MESSAGES),
    )

    @property
    def sent(self) -> pa.RecordBatch:
        """The messages that are published now."""
        jobs = self.messages.column("job_id")
        return self.messages if jobs.null_count == len(jobs) else self.messages.filter(jobs.is_null())

    @property
    def scheduled(self) -> pa.RecordBatch:
        """What is for the schedule, in the order of the handlers."""
        return self.messages.filter(self.messages.column("job_id").is_valid())


class DecisionLog:
    """The entries of one batch, in the folder of its run (a query, or one call of `Worker.run`).

    Args:
        location: a directory or object store that driver and executors share.
        run: the id of the query, or of the run.
        batch: number of the batch within it.
        config: of the object store, if it is one, by the names of the options `journal.<name>`.
    """

    def __init__(self, location: str, run: str, batch: int, config: Mapping[str, str] | None = None) -> None:
        self._store = open_store(location, "state", config)
        self._run = run
        self._batch = batch

    def begin(self) -> None:
        """Open the batch, and delete what former batches of this run left: they are finished."""
        for name in self._store.names(self._run):
            if name.isdigit() and int(name) < self._batch:
                self._store.remove(f"{self._run}/{name}")
        self._store.make_folder(self._folder)
        self._store.create(f"{self._folder}/{_BEGUN}", b"{}")

    def end(self) -> None:
        """Delete all of this run, which nothing can repeat."""
        self._store.remove(self._run)

    def probe(self) -> None:
        """Raise `JournalError` where the storage cannot do what the log of decisions needs."""
        self._store.probe()

    def read(self, name: str) -> LogEntry | None:
        """Read an entry; None when nobody has written it."""
        file = self._store.read_arrow(self._path(name))
        if file is None:
            return None
        [messages] = file.batches
        return LogEntry(json.loads(file.metadata[b"notes"]), messages)

    def write(self, name: str, entry: LogEntry) -> LogEntry:
        """Write an entry, whole and durable; returns the one that is there now: the first that was written.

        `JournalMissingError` when the batch is finished, or this host does not see it: nothing is decided.
        """
        schema = OUTGOING_MESSAGES.with_metadata({"notes": json.dumps(entry.notes)})
        try:
            self._store.create_arrow(self._path(name), [entry.messages], schema)
            begun = self._store.read(f"{self._folder}/{_BEGUN}") is not None
        except JournalMissingError:
            begun = False
        if not begun:
            self._store.remove(self._folder)
            raise JournalMissingError(
                f"state {self._store.location}: host {socket.gethostname()} sees nothing of batch "
                f"{self._batch} there: another attempt finished it and this came too late, or it "
                "is not on storage that driver and executors share; nothing of what was decided is published"
            )
        written = self.read(name)
        if written is None:
            raise JournalError(f"state {self._store.location} lost an entry while it was written")
        return written

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.arrow"

    @property
    def _folder(self) -> str:
        return f"{self._run}/{self._batch:010d}"


def fingerprint(*columns: Sequence[bytes]) -> str:
    """Digest rows by what they hold, as 32 hex digits: a decision must never stand for other rows."""
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        lengths = np.fromiter(map(len, column), np.int64, len(column))
        digest.update(lengths.tobytes())
        digest.update(b"".join(column))
    return digest.hexdigest()
