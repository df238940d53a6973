"""Which rows of a partition may be handled: each message once, where there is an idempotency store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from babelqueue_spark.worker.idempotency import IdempotencyStore, Record

GRANTED = Record("granted")
_DUPLICATE = Record("handled")
_CLAIMED_AT_ONCE = 256


class Gate:
    """The claims of one partition's task; asked row after row, in order.

    A row that is asked for has half a lease before it at least: older claims are made anew.

    Args:
        store: knows what was handled; without one, everything may be.
        owner: whose claims these are; the same when the task or its batch is repeated.
        ids: the `meta.id` of each row; one that is null or empty cannot be known, and passes.
        wanted: whether a row is to be handled at all.
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
        """Whether the row's message may be handled; within a partition a repeat is known by its first."""
        message_id = self._ids[row]
        if not message_id:
            return GRANTED
        if time.monotonic() > self._fresh_until:
            self._claimed_up_to = min(self._claimed_up_to, row)
        while row >= self._claimed_up_to:
            self._claim_more()
        return _DUPLICATE if message_id in self._handled else self._records[message_id]

    def admit(self, row: int) -> Record:
        """The record of a row whose message is handled later, with all others: repeats count as handled."""
        record = self.record(row)
        message_id = self._ids[row]
        if message_id and record.standing == "granted":
            self._handled.add(message_id)
        return record

    def handled(self, row: int, returned: Any = None) -> None:
        """The handler of the row's message returned this, of JSON's types."""
        message_id = self._ids[row]
        if not message_id or self._store is None:
            return
        if not self.record(row).ours:
            self._store.remember(message_id, self._owner, json.dumps(returned).encode())
        self._handled.add(message_id)
        self._failed.discard(message_id)

    def failed(self, row: int) -> None:
        """The handler of the row's message raised."""
        if message_id := self._ids[row]:
            self._failed.add(message_id)

    def revoke(self, row: int) -> None:
        """What the handler returned cannot be published after all: the message failed."""
        message_id = self._ids[row]
        if message_id and self._store is not None:
            self._store.forget([message_id])
            self._handled.discard(message_id)

    def to_release(self) -> list[str]:
        """The claims that are to end: their messages failed, and are tried again later."""
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


class OpenedGate(Gate):
    """A gate whose claims were made and written down before, for a handler that has run since."""

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
