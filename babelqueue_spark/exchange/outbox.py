"""A transactional outbox: rows that a service stored with its own data, published by whoever relays them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from babelqueue_spark.bindings import BaseBinding, BindingConfig
from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.connector.options import write_options
from babelqueue_spark.connector.publishing import publish, publish_parts
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.errors import BabelQueueError, BrokerFullError, BrokerUnreachableError
from babelqueue_spark.secrets import resolve

logger = logging.getLogger(__name__)

_ROWS = 1_000
_BYTES = 32 << 20
"""Bounds of a claim."""
_PART = 100
"""Rows that are published at once where no key drops a repeat: what is confirmed is not published again."""


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

    def relay(self, options: Mapping[str, str]) -> Relayed:
        """Publish the rows that are pending, in the order of each queue; bodies stay byte for byte.

        Args:
            options: of a write, the broker's. With `queue`, it takes all messages; else each row goes to the
                queue that it names.

        Raises:
            BrokerError: the broker or the database failed; the next relay continues.
        """
        target = write_options(options)
        done = Relayed()
        with self._binding() as outbox, target.binding() as broker:
            for queue in outbox.pending_queues():
                done += _relay_queue(outbox, queue, broker, target.queue[0] if target.queue else queue)
        return done

    def _binding(self) -> SqlBinding:
        client = {"layout": "outbox", "table": self.table}
        url = resolve(self.url, "the outbox's URL")
        return SqlBinding(BindingConfig(url=url, visibility_timeout=self.lease, client_options=client))


def _relay_queue(outbox: SqlBinding, queue: str, broker: BaseBinding, into: str) -> Relayed:
    """Claim, publish and mark, until nothing is left or another relay has claimed the queue."""
    done = Relayed()
    while (claimed := outbox.claim(queue, _ROWS, _BYTES)).num_rows:
        done += _relay_claim(outbox, queue, broker, into, claimed)
        if done.failed and not outbox.has_untried(queue):
            break
    return done


def _relay_claim(
    outbox: SqlBinding, queue: str, broker: BaseBinding, into: str, claimed: pa.RecordBatch
) -> Relayed:
    """Publish and mark claimed rows; what it has no time for is released, as the claim may lapse."""
    until = time.monotonic() + outbox.lease / 2
    claim = outbox.claim_of(claimed)
    parts, done = _published(broker, into, claimed, claim), 0
    while done < claimed.num_rows:
        try:
            confirmed = next(parts)
        except (BrokerUnreachableError, BrokerFullError) as error:
            outbox.mark_failed(claimed.slice(done), error.text, together=True)
            raise
        except BabelQueueError:
            rest = claimed.slice(done)
            return Relayed(done) + _relay_singly(outbox, queue, broker, into, rest, claim, until)
        outbox.acknowledge(queue, confirmed)
        done += confirmed.num_rows
        if time.monotonic() > until:
            outbox.release(queue, claimed.slice(done))
            break
    return Relayed(done)


def _published(
    broker: BaseBinding, into: str, claimed: pa.RecordBatch, claim: str
) -> Iterator[pa.RecordBatch]:
    """Publish claimed rows; yields what the broker has confirmed, all in one where it drops a repeat."""
    if broker.capabilities.publish_once:
        publish(broker, into, _outgoing(claimed), keys=_keys(claimed, claim))
        yield claimed
        return
    for first in range(0, claimed.num_rows, _PART):
        rows = claimed.slice(first, _PART)
        for part, _ in publish_parts(broker, into, _outgoing(rows), keys=_keys(rows, claim)):
            yield rows.slice(part.start, len(part))


def _relay_singly(
    outbox: SqlBinding,
    queue: str,
    broker: BaseBinding,
    into: str,
    claimed: pa.RecordBatch,
    claim: str,
    until: float,
) -> Relayed:
    """Return what the broker refuses stays pending, and does not hold up what is behind it."""
    done = Relayed()
    for row in range(claimed.num_rows):
        single = claimed.slice(row, 1)
        try:
            publish(broker, into, _outgoing(single), keys=_keys(single, claim))
        except (BrokerUnreachableError, BrokerFullError) as error:
            outbox.mark_failed(claimed.slice(row), error.text, together=True)
            raise
        except BabelQueueError as error:
            logger.error("row %s was not published: %s", single.column("id")[0], error.text)
            outbox.mark_failed(single, error.text, together=False)
            done += Relayed(failed=1)
        else:
            outbox.acknowledge(queue, single)
            done += Relayed(1)
        if time.monotonic() > until:
            outbox.release(queue, claimed.slice(row + 1))
            break
    return done


def _outgoing(rows: pa.RecordBatch) -> pa.RecordBatch:
    return outgoing(rows.num_rows, body=rows.column("body"))


def _keys(rows: pa.RecordBatch, claim: str) -> IdSource:
    """Keys that the same rows have each time that they are claimed again under the same name."""
    return IdSource(" ".join([claim, *rows.column("id").to_pylist()]))
