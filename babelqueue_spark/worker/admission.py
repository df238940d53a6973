"""Admit rows of a partition to their handlers: each message once, where there is an idempotency store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from babelqueue_spark.worker.idempotency import IdempotencyStore, Record

GRANTED = Record("granted")
_DUPLICATE = Record("handled")
_CLAIMED_AT_ONCE = 256


class Admission:
    """The claims of one partition's task; asked row after row, in order.

    A row that is admitted has at least half a lease left: older claims are renewed.

    Args:
        store: knows what was handled; without one, everything may be.
        owner: whose claims these are; the same when the task or its batch is repeated.
        ids: the `meta.id` of each row; one that is null or empty cannot be known, and passes.
        wanted: whether a row has a handler; only these are claimed.
    """

    def __init__(
        self,
        store: IdempotencyStore | None,
        owner: str,
        ids: Sequence[str | None],
        wanted: Callable[[int], bool],
    ) -> None:
        self._store = store
        self._owner = owner
        self._ids = ids if store is not None else [None] * len(ids)
        self._wanted = wanted
        self._claimed_up_to = 0
        self._fresh_until = 0.0
        self._records: dict[str, Record] = {}
        self._handled: set[str] = set()
        self._failed: set[str] = set()

    def record(self, row: int) -> Record:
        """Tell whether the row's message may be handled; a repeat within the partition is a duplicate."""
        message_id = self._ids[row]
        if not message_id:
            return GRANTED
        if time.monotonic() > self._fresh_until:
            self._claimed_up_to = min(self._claimed_up_to, row)
        while row >= self._claimed_up_to:
            self._claim_more()
        return _DUPLICATE if message_id in self._handled else self._records[message_id]

    def admit(self, row: int) -> Record:
        """Tell the same of a message that is handled later, with all others: its repeats count as handled."""
        record = self.record(row)
        message_id = self._ids[row]
        if message_id and record.standing == "granted":
            self._handled.add(message_id)
        return record

    def handled(self, row: int, returned: Any = None) -> None:
        """Remember that the handler of the row's message returned this, of JSON's types."""
        message_id = self._ids[row]
        if not message_id or self._store is None:
            return
        if not self.record(row).ours:
            self._store.remember(message_id, self._owner, json.dumps(returned).encode())
        self._handled.add(message_id)
        self._failed.discard(message_id)

    def failed(self, row: int) -> None:
        """Note that the handler of the row's message raised."""
        if message_id := self._ids[row]:
            self._failed.add(message_id)

    def revoke(self, row: int) -> None:
        """Forget that the row's message was handled: what its handler returned cannot be published."""
        message_id = self._ids[row]
        if message_id and self._store is not None:
            self._store.forget([message_id])
            self._handled.discard(message_id)

    def to_release(self) -> list[str]:
        """List the claims to end: their messages failed, and are retried later."""
        return sorted(self._failed)

    def _claim_more(self) -> None:
        assert self._store is not None, "without a store, no row has an id to claim"
        rows = range(self._claimed_up_to, min(self._claimed_up_to + _CLAIMED_AT_ONCE, len(self._ids)))
        ids = dict.fromkeys(
            message_id
            for row in rows
            if (message_id := self._ids[row]) and self._wanted(row) and message_id not in self._handled
        )
        self._fresh_until = time.monotonic() + self._store.lease / 2
        if ids:
            self._records.update(zip(ids, self._store.claim(list(ids), self._owner), strict=True))
        self._claimed_up_to = rows.stop


class RecordedAdmission(Admission):
    """The claims that were made and recorded before a DataFrame handler ran."""

    def __init__(
        self,
        store: IdempotencyStore | None,
        owner: str,
        ids: Sequence[str | None],
        records: Sequence[Record],
    ) -> None:
        super().__init__(store, owner, ids, lambda _: True)
        self._of_rows = records

    def record(self, row: int) -> Record:
        return self._of_rows[row]
