"""A transactional outbox: rows that a service stored with its own data, published by whoever relays them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from babelqueue_spark.bindings import BaseBinding, BindingConfig
from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.connector.message_log import MessageLog, message_log
from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.publishing import OF_ONE_QUEUE, publish_or_singly
from babelqueue_spark.connector.rows.given import check_seconds
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.errors import BabelQueueError, BrokerError, QueuesFailedError
from babelqueue_spark.secrets import resolve

logger = logging.getLogger(__name__)

_ROWS = 1_000
_BYTES = 32 << 20
"""Bounds of a claim."""


@dataclass(frozen=True)
class Relayed:
    """What a relay did.

    Attributes:
        messages: how many rows were published.
        failed: how many the broker refused; they stay pending, with the reason.
    """

    messages: int = 0
    failed: int = 0

    def __add__(self, other: Relayed) -> Relayed:
        return Relayed(self.messages + other.messages, self.failed + other.failed)


@dataclass(frozen=True)
class Outbox:
    """The table of an outbox, in SQLite, PostgreSQL or MariaDB; made where it is missing.

    Attributes:
        url: its database, or a reference to the URL.
        table: its table.
        lease: seconds after which what a relay claimed that died goes to another.
    """

    url: str = field(repr=False)
    table: str = "outbox"
    lease: float = 90.0

    def __post_init__(self) -> None:
        check_seconds("lease", self.lease, 2)

    def relay(self, options: Mapping[str, str]) -> Relayed:
        """Publish the rows that are pending, in the order of each queue; bodies stay byte for byte.

        Args:
            options: of a write, the broker's. With `queue`, it takes all messages; else each row goes to the
                queue that it names.

        Raises:
            QueuesFailedError: some queues are full, or closed to the user; their rows wait, the others went.
            BrokerError: the broker or the database failed; the next relay continues.
        """
        target = write_options(options)
        done = Relayed()
        closed: dict[str, str] = {}
        name = f"relayed-{uuid.uuid4().hex}"
        with (
            self._binding() as outbox,
            target.binding() as broker,
            message_log(target.message_log, name, broker, target.catalog) as lines,
        ):
            for queue in outbox.pending_queues():
                into = target.queue[0] if target.queue else queue
                try:
                    for some in _Queue(outbox, queue, broker, into, lines).relay():
                        done += some
                except OF_ONE_QUEUE as error:
                    closed[into] = error.text
        if closed:
            raise QueuesFailedError.of(closed, done, done.messages)
        return done

    def _binding(self) -> SqlBinding:
        client = {"layout": "outbox", "table": self.table}
        url = resolve(self.url, "the outbox's URL")
        return SqlBinding(BindingConfig(url=url, visibility_timeout=self.lease, client_options=client))


@dataclass(frozen=True)
class _Queue:
    outbox: SqlBinding
    name: str
    broker: BaseBinding
    into: str
    lines: MessageLog

    def relay(self) -> Iterator[Relayed]:
        """Claim, publish and mark, until nothing is left or another relay has claimed the queue."""
        failed = 0
        while (claimed := self.outbox.claim(self.name, _ROWS, _BYTES)).num_rows:
            for some in self._relay_claim(claimed):
                failed += some.failed
                yield some
            if failed and not self.outbox.has_untried(self.name):
                break

    def _relay_claim(self, claimed: pa.RecordBatch) -> Iterator[Relayed]:
        """Publish and mark claimed rows; what it has no time for is released, as the claim may lapse."""
        until = time.monotonic() + self.outbox.lease / 2
        for part, error in self._published(claimed):
            yield self._marked(claimed.slice(part.start, len(part)), error)
            if time.monotonic() > until:
                self.outbox.release(self.name, claimed.slice(part.stop))
                break

    def _published(self, claimed: pa.RecordBatch) -> Iterator[tuple[range, BabelQueueError | None]]:
        """Publish claimed rows; those that wait, as the broker or the queue takes nothing, stay together."""
        claim, singly = self.outbox.claim_of(claimed)
        messages = outgoing(claimed.num_rows, body=claimed.column("body"))
        ids = claimed.column("id").to_pylist()
        done = 0
        try:
            for part, error in publish_or_singly(
                self.broker,
                self.into,
                messages,
                keys=lambda row: IdSource(" ".join([claim, *(ids if row is None else ids[row : row + 1])])),
                singly=singly,
                note=lambda row: self.outbox.note_singly(claimed.slice(row)),
                lines=self.lines,
            ):
                done = part.stop
                yield part, error
        except BrokerError as error:
            self.outbox.mark_failed(claimed.slice(done), error.text, together=True)
            raise

    def _marked(self, rows: pa.RecordBatch, error: BabelQueueError | None) -> Relayed:
        if error is None:
            self.outbox.acknowledge(self.name, rows)
            return Relayed(rows.num_rows)
        logger.error("rows %s were not published: %s", ", ".join(rows.column("id").to_pylist()), error.text)
        self.outbox.mark_failed(rows, error.text, together=False)
        return Relayed(failed=rows.num_rows)
