"""What all layouts have in common: a client and its clock, idempotency keys, and what a database can hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from babelqueue_spark.bindings.batches import fitting
from babelqueue_spark.bindings.contract import Binding, BindingConfig, Capabilities, DeadLetterStyle
from babelqueue_spark.bindings.sql import tables, times
from babelqueue_spark.bindings.sql.client import SqlClient
from babelqueue_spark.bindings.sql.options import SqlOptions
from babelqueue_spark.errors import BrokerError, BrokerUnreachableError, MessageTooLargeError

RowId = TypeVar("RowId", int, str)
FAILED = "failed/"
_KEYS_KEPT = 7 * 86_400
_STATEMENT_BYTES = 4_096
"""Room in a statement for all that is not the body."""


def first_fitting(
    connection: sa.Connection, rows: sa.Select[RowId, int], max_bytes: int, *, locked: bool
) -> list[RowId]:
    """Return the ids of the first rows, of id and size, that fit; when locked, others skip them."""
    found = connection.execute(rows.with_for_update(skip_locked=True) if locked else rows).all()
    return [row[0] for row in found[: fitting((row[1] for row in found), max_bytes)]]


class Layout(Protocol):
    """The tables of a layout: those that are made where they are missing, and one for idempotency keys."""

    whose: str
    metadata: sa.MetaData
    published: sa.Table


class Database(Binding):
    """A SQL database; subclasses know how a queue lies in it.

    Claims and delays go by the server's clock; on SQLite by the host's, which all its processes share.
    """

    name = "sql"
    title = "SQL"
    capabilities = Capabilities(
        visibility_timeout=90.0,
        claim_batch=10_000,
        publish_batch=10_000,
        durable_receipts=True,
        publish_once=True,
        max_delay=None,
        browse="exact",
        ordered=True,
    )

    def __init__(self, config: BindingConfig, options: SqlOptions, layout: Layout) -> None:
        super().__init__(config)
        self._published = layout.published
        self._client = SqlClient(options.url, layout.metadata, layout.whose)
        self.silence_limit = options.silence_limit
        self._zone = options.time_zone
        self._retry_after = options.retry_after
        # A claim counts from the second that has begun.
        self.lease = options.retry_after - 1.0

    def now(self) -> float:
        return self._client.now()

    def skew(self) -> float | None:
        now = self._client.now()
        return time.time() - now if self._client.dialect.clock else None

    def missing(self, queue: str) -> str:
        del queue
        return self._client.missing()

    def close(self) -> None:
        self._client.close()

    def check_queue(self, queue: str) -> None:
        super().check_queue(queue)
        if len(queue) > tables.LONGEST_QUEUE:
            raise self.refused_name(queue, f"it has {tables.LONGEST_QUEUE} characters at most")

    @classmethod
    def dead_letter_name(cls, queue: str, style: DeadLetterStyle) -> str:
        """`<queue>.dlq`, or `failed/<queue>`: the rows of the failed table with that queue."""
        return f"{queue}.dlq" if style == "babelqueue" else f"{FAILED}{queue}"

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        """On MariaDB and MySQL, which end the connection at a statement that is too long."""
        del queue
        return self._larger_than(self._client.longest_statement() - _STATEMENT_BYTES, messages)

    def _inserted(
        self,
        queue: str,
        messages: pa.RecordBatch,
        idempotency_key: str | None,
        append: Callable[[sa.Connection], int],
    ) -> int:
        """Return how many messages `append` wrote, in one transaction with the key; 0 where that is known."""

        def once(connection: sa.Connection) -> int:
            if idempotency_key is not None and not self._is_new(connection, idempotency_key):
                return 0
            return append(connection)

        try:
            return self._client.write(once)
        except BrokerUnreachableError:
            # A statement beyond the limit ends the connection.
            if refused := self.too_large(queue, messages):
                raise self._too_large(refused, messages) from None
            raise

    def _check_sizes(self, messages: pa.RecordBatch) -> None:
        """Raise `MessageTooLargeError` for what no statement can hold; before anything is encoded."""
        if refused := self._larger_than(self._client.longest_statement(), messages):
            raise self._too_large(refused, messages)

    def _larger_than(self, limit: float, messages: pa.RecordBatch) -> list[int]:
        """Rows whose bodies, as a statement has them, are larger."""
        bodies = messages.column("body")
        if (pc.max(pc.binary_length(bodies)).as_py() or 0) * 2 <= limit:
            return []
        literal_size = self._client.dialect.literal_size
        return [row for row, body in enumerate(bodies.to_pylist()) if literal_size(body) > limit]

    def _too_large(self, rows: list[int], messages: pa.RecordBatch) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"{self._client.address}: message {rows[0] + 1} of {messages.num_rows} is larger than its "
            "max_allowed_packet; nothing was published: raise that on the server"
        )

    def _is_new(self, connection: sa.Connection, idempotency_key: str) -> bool:
        """Write the key down unless it is there; forget old ones."""
        published, seconds = self._published, self._client.now()
        kept = times.written(seconds - _KEYS_KEPT, self._zone)
        connection.execute(sa.delete(published).where(published.c.created_at < kept))
        try:
            created_at = times.written(seconds, self._zone)
            connection.execute(sa.insert(published).values(marker=idempotency_key, created_at=created_at))
        except IntegrityError:
            return False
        return True

    def _stored(self, body: bytes, row: int, rows: int) -> str | bytes:
        try:
            return self._client.dialect.stored(body)
        except ValueError as reason:
            raise BrokerError(
                f"{self._client.address}: message {row + 1} of {rows} {reason}, which its tables cannot "
                "hold; nothing was published: write such bytes as base64 in the JSON, or use another broker"
            ) from None
