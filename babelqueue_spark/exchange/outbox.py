"""A transactional outbox: rows that a service stored with its own data, published by whoever relays them."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from babelqueue_spark.bindings import BaseBinding, BindingConfig
from babelqueue_spark.bindings.batches import outgoing
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.errors import BabelQueueError, BrokerFullError, BrokerUnreachableError
from babelqueue_spark.options import write_options
from babelqueue_spark.publishing import publish
from babelqueue_spark.rows.ids import IdSource
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
        relayed = _relay_claim(outbox, queue, broker, into, claimed)
        done += relayed
        if relayed.failed and not outbox.has_untried(queue):
            break
    return done


def _relay_claim(
    outbox: SqlBinding, queue: str, broker: BaseBinding, into: str, claimed: pa.RecordBatch
) -> Relayed:
    try:
        _publish(broker, into, claimed)
    except (BrokerUnreachableError, BrokerFullError) as error:
        outbox.mark_failed(claimed, error.text, together=True)
        raise
    except BabelQueueError:
        return _relay_singly(outbox, queue, broker, into, claimed)
    outbox.acknowledge(queue, claimed)
    return Relayed(claimed.num_rows)


def _relay_singly(
    outbox: SqlBinding, queue: str, broker: BaseBinding, into: str, claimed: pa.RecordBatch
) -> Relayed:
    """What the broker refuses stays pending, and does not hold up what is behind it.

    Ends early where the claim may lapse: another relay gets the rest.
    """
    done, until = Relayed(), time.monotonic() + outbox.lease / 2
    for row in range(claimed.num_rows):
        if time.monotonic() > until:
            break
        single = claimed.slice(row, 1)
        try:
            _publish(broker, into, single)
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
    return done


def _publish(broker: BaseBinding, into: str, rows: pa.RecordBatch) -> None:
    """Under a key that the same rows have each time: a claim that lapsed is claimed again as it was."""
    ids = hashlib.blake2b("\0".join(rows.column("id").to_pylist()).encode(), digest_size=16)
    for body in rows.column("body"):
        ids.update(body.as_buffer())
    keys = IdSource(f"relay {ids.hexdigest()}")
    publish(broker, into, outgoing(rows.num_rows, body=rows.column("body")), keys=keys)
