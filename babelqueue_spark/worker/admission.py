"""Admit rows of a partition to their handlers: each message once, where there is an idempotency store."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from babelqueue_spark.worker.stores.idempotency import IdempotencyStore, Record

GRANTED = Record("granted")
_DUPLICATE = Record("handled")
_CLAIMED_AT_ONCE = 256


class Admission:
    """The claims of one partition's task.

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
        self._fresh_until: dict[str, float] = {}
        self._records: dict[str, Record] = {}
        self._handled: set[str] = set()
        self._failed: set[str] = set()

    @property
    def tells_repeats(self) -> bool:
        """Whether it knows a message that was handled."""
        return self._store is not None

    @property
    def seconds_between_renewals(self) -> float:
        """How long the claims of calls that are under way may go without `renew`."""
        return math.inf if self._store is None else self._store.lease / 4

    def record(self, row: int) -> Record:
        """Tell whether the row's message may be handled; a repeat within the partition is a duplicate."""
        message_id = self._ids[row]
        if not message_id:
            return GRANTED
        if message_id in self._handled:
            return _DUPLICATE
        if time.monotonic() > self._fresh_until.get(message_id, 0.0):
            self._claim(range(row, min(row + _CLAIMED_AT_ONCE, len(self._ids))))
        return self._records[message_id]

    def renew(self, rows: Iterable[int]) -> None:
        """Claim the messages of rows whose calls are under way again, where a quarter of a lease is over."""
        if self._store is not None:
            soon = time.monotonic() + self.seconds_between_renewals
            self._claim([row for row in rows if soon > self._fresh_until.get(self._ids[row] or "", soon)])

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
        if not (self._records.get(message_id) or self.record(row)).ours:
            self._store.remember(message_id, self._owner, json.dumps(returned).encode())
        self._handled.add(message_id)
        self._failed.discard(message_id)

    def failed(self, row: int) -> None:
        """Note that the row's message was not handled: its handler raised, or is not called for now."""
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

    def _claim(self, rows: Sequence[int]) -> None:
        assert self._store is not None, "without a store, no row has an id to claim"
        ids = dict.fromkeys(
            message_id
            for row in rows
            if (message_id := self._ids[row]) and self._wanted(row) and message_id not in self._handled
        )
        if ids:
            self._fresh_until |= dict.fromkeys(ids, time.monotonic() + self._store.lease / 2)
            self._records.update(zip(ids, self._store.claim(list(ids), self._owner), strict=True))


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
