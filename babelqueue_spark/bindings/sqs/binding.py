"""The binding of Amazon SQS."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from threading import Condition
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.batches import chunks, counted_attempts, fitting
from babelqueue_spark.bindings.contract import Binding, BindingConfig, Capabilities, DeadLetterStyle
from babelqueue_spark.bindings.headers import UnsendableError
from babelqueue_spark.bindings.sqs.client import (
    BATCH,
    OverLimitError,
    SqsClient,
    is_bare_name,
    is_fifo,
    is_name,
    short_name,
)
from babelqueue_spark.bindings.sqs.messages import RequestEntry, Target, body, claim_of, entries, received
from babelqueue_spark.bindings.sqs.options import SqsOptions
from babelqueue_spark.errors import BrokerError

_DRY = 2
"""So many empty receives one after the other end a claim: one alone may have asked the wrong servers."""

_LONG_POLL = 1
"""Seconds; a receive that waits at all asks all servers."""

_DUPLICATE_SECONDS = 300.0

_Taken = tuple[float, dict[str, Any]]
"""When the claim of a received message lapses, and the message."""

logger = logging.getLogger(__name__)


class SqsBinding(Binding):
    """Amazon SQS, or what speaks its protocol."""

    name = "sqs"
    title = "SQS"
    delay_advice = "a FIFO queue takes the DelaySeconds that are set of it"
    capabilities = Capabilities(
        visibility_timeout=90.0,
        claim_batch=2_000,
        publish_batch=2_000,
        durable_receipts=True,
        max_delay=900_000,
        browse="none",
        ordered=False,
        keys=True,
        headers=True,
        native_dead_letters=True,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self._options = SqsOptions.parse(config)
        self._sqs = SqsClient(self._options)
        self.silence_limit = self._options.silence_limit
        self.lease = float(self._options.visibility)
        if self._options.fifo:
            self.capabilities = replace(
                self.capabilities, ordered=True, max_delay=0, duplicate_detection=True
            )

    def backlog(self, queue: str) -> int:
        """Visible messages, approximately, as SQS counts them."""
        wanted = ["ApproximateNumberOfMessages"]
        answer = self._sqs.call("get_queue_attributes", QueueUrl=self._sqs.url(queue), AttributeNames=wanted)
        return int(answer["Attributes"][wanted[0]])

    def check_queue(self, queue: str) -> None:
        if not is_name(queue):
            raise self.refused_name(
                queue,
                "it has 1 to 80 letters, digits, hyphens and underscores, with .fifo at the end of a FIFO "
                "queue's; or give its URL or ARN",
            )

    def check_foreign(self, queue: str) -> None:
        """Refuse URLs and ARNs, which may be of another account."""
        if not is_bare_name(queue):
            raise self.refused_name(queue, "a message may name a queue of this account alone")

    def missing(self, queue: str) -> str:
        return f"the queue '{queue}'" if self._sqs.is_missing(queue) else ""

    def queues(self) -> list[str]:
        return self._sqs.names()

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim by receives of ten, several in flight, until enough is taken or receives come back empty.

        Where that finds nothing although SQS counts messages, a long poll asks all its servers. An error ends
        the claim with what was taken before it; that too many are in flight just ends it.
        """
        url = self._sqs.url(queue)
        room = _Room(messages, max_bytes, self._options.max_message_bytes)
        receivers = range(min(self._options.concurrency, -(-messages // BATCH)))
        taken = [
            each for some in self._sqs.each(lambda _: self._receive(url, room), receivers) for each in some
        ]
        if not taken and room.error is None and self.backlog(queue):
            room = _Room(1, max_bytes, self._options.max_message_bytes)
            taken = self._receive(url, room, wait=_LONG_POLL)
        if isinstance(room.error, OverLimitError):
            logger.warning("%s", room.error)
        elif room.error is not None and not taken:
            raise room.error
        kept = fitting([len(body(message)) for _, message in taken], max_bytes)
        handles = [message["ReceiptHandle"] for _, message in taken[kept:]]
        self._give_back(lambda: self._release(url, handles), len(handles))
        lapses_at = [lapses for lapses, _ in taken[:kept]]
        return received([message for _, message in taken[:kept]], lapses_at)

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Return true where SQS confirmed the deletion before the claim could lapse.

        Nothing is asked of SQS after that: a standard queue would say yes to an old receipt handle, and
        deliver the message again all the same.
        """
        url = self._sqs.url(queue)
        claims = [claim_of(receipt) for receipt in deliveries.column("receipt").to_pylist()]
        removed = [False] * len(claims)

        def delete(rows: Sequence[int]) -> None:
            now = time.time()
            live = [row for row in rows if now < claims[row][0]]
            if not live:
                return
            handles = [{"Id": str(row), "ReceiptHandle": claims[row][1]} for row in live]
            refused = self._sqs.batch("delete_message_batch", url, handles)
            now = time.time()
            for row in live:
                removed[row] = str(row) not in refused and now < claims[row][0]

        self._sqs.each(delete, _tens(range(len(claims))))
        return pa.array(removed, pa.bool_())

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """Release by a visibility timeout of 0; SQS counts the delivery all the same."""
        claims = [claim_of(receipt) for receipt in deliveries.column("receipt").to_pylist()]
        now = time.time()
        self._release(self._sqs.url(queue), [handle for lapses_at, handle in claims if now < lapses_at])

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Publish by requests of up to ten, several in flight; one after the other within a message group."""
        del idempotency_key
        options = self._options
        target = Target(
            queue=short_name(queue),
            fifo=is_fifo(queue),
            group=options.group_id or short_name(queue),
            content_dedup=options.content_dedup,
            max_bytes=options.max_message_bytes,
        )
        try:
            made = entries(messages, target)
        except UnsendableError as error:
            raise self._sqs.error(str(error), queue) from None
        url = self._sqs.url(queue)

        def send(lane: Sequence[RequestEntry]) -> None:
            for batch in chunks(lane, attrgetter("size"), BATCH, options.max_message_bytes):
                self._send(url, batch)

        self._sqs.each(send, _lanes(made, options.concurrency, by_group=target.fifo))
        return len(made)

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        """Measure messages by their bodies: attributes that do not fit are left out."""
        del queue
        sizes = pc.binary_length(messages.column("body"))
        return np.flatnonzero(pc.greater(sizes, self._options.max_message_bytes)).tolist()

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """`BrokerError`: a receive takes what it shows, and counts it as a delivery."""
        raise self._sqs.error("it cannot be read without consuming it: use spark.readStream", queue)

    def close(self) -> None:
        self._sqs.close()

    @classmethod
    def dead_letter_name(cls, queue: str, style: DeadLetterStyle) -> str:
        """`<queue>-dlq`, or `<queue>_failed`, before `.fifo`; of a URL or an ARN one of the same kind."""
        suffix = "-dlq" if style == "babelqueue" else "_failed"
        return f"{queue.removesuffix('.fifo')}{suffix}{'.fifo' if is_fifo(queue) else ''}"

    def longest_delay(self, queue: str) -> int | None:
        """None at all for a single message of a FIFO queue."""
        return 0 if is_fifo(queue) else self.capabilities.max_delay

    def duplicate_window(self, queue: str) -> float:
        """Five minutes in a FIFO queue."""
        return _DUPLICATE_SECONDS if is_fifo(queue) else 0.0

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """Return the larger of the body's count and the deliveries before this one, where they are known."""
        return counted_attempts(body_attempts, deliveries.column("count"))

    def _receive(self, url: str, room: _Room, wait: int = 0) -> list[_Taken]:
        """Return what one of several receivers takes until there is no more room, or nothing more comes."""
        taken: list[_Taken] = []
        try:
            while asked := room.ask():
                lapses_at = time.time() + self._options.visibility
                answer = self._sqs.call(
                    "receive_message",
                    QueueUrl=url,
                    MaxNumberOfMessages=asked,
                    VisibilityTimeout=self._options.visibility,
                    WaitTimeSeconds=wait,
                    MessageAttributeNames=["All"],
                    AttributeNames=["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"],
                )
                messages = answer.get("Messages", ())
                room.fill(asked, [len(body(message)) for message in messages])
                taken += [(lapses_at, message) for message in messages]
        except BrokerError as error:
            room.error = error
        finally:
            room.end()
        return taken

    def _release(self, url: str, handles: Sequence[str]) -> None:
        def release(rows: Sequence[int]) -> None:
            changes = [
                {"Id": str(row), "ReceiptHandle": handles[row], "VisibilityTimeout": 0} for row in rows
            ]
            self._sqs.batch("change_message_visibility_batch", url, changes)

        self._sqs.each(release, _tens(range(len(handles))))

    def _send(self, url: str, batch: Sequence[RequestEntry]) -> None:
        refused = self._sqs.batch("send_message_batch", url, [entry.request for entry in batch])
        if refused:
            reasons = [
                f"{entry.label}: {refused[entry.request['Id']]}"
                for entry in batch
                if entry.request["Id"] in refused
            ]
            raise self._sqs.error(f"messages were refused: {'; '.join(reasons)}", url)


class _Room:
    """What a claim may still take, shared by its receivers.

    Args:
        messages: most messages.
        max_bytes: most bytes of bodies; what receives bring beyond it is released.
        largest: the size of a message as long as none was seen; then the mean is expected.
    """

    def __init__(self, messages: int, max_bytes: int, largest: int) -> None:
        self.error: BrokerError | None = None
        self._changed = Condition()
        self._messages = messages
        self._bytes = max_bytes
        self._expected: float = largest
        self._asked = self._seen = self._size = self._empty = 0
        self._over = False

    def ask(self) -> int:
        """Return how many messages the next receive may bring; 0 when the claim is at its end.

        Waits while that depends on what other receivers bring.
        """
        with self._changed:
            while not self._over and self._empty < _DRY and self._size < self._bytes:
                asked = min(BATCH, self._messages, self._fitting())
                if asked > 0:
                    self._messages -= asked
                    self._asked += asked
                    return asked
                if not self._asked:
                    break
                self._changed.wait()
            return 0

    def fill(self, asked: int, sizes: Sequence[int]) -> None:
        with self._changed:
            self._asked -= asked
            self._messages += asked - len(sizes)
            self._empty = 0 if sizes else self._empty + 1
            self._seen += len(sizes)
            self._size += sum(sizes)
            if self._seen:
                self._expected = max(1.0, self._size / self._seen)
            self._changed.notify_all()

    def end(self) -> None:
        """Stop the other receivers: one is done, or failed."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _fitting(self) -> int:
        """Return how many more messages of the expected size fit; 1 where none was seen."""
        fitting = int((self._bytes - self._size) / self._expected) - self._asked
        return fitting if self._seen or self._asked else max(1, fitting)


def _tens(rows: Sequence[int]) -> list[Sequence[int]]:
    return [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]


def _lanes(made: Sequence[RequestEntry], count: int, *, by_group: bool) -> list[list[RequestEntry]]:
    """Return the entries, dealt to senders that work side by side; a message group stays with one of them."""
    lanes: list[list[RequestEntry]] = [[] for _ in range(count)]
    lane_of: dict[str, int] = {}
    for row, entry in enumerate(made):
        group = entry.request["MessageGroupId"] if by_group else str(row // BATCH)
        lanes[lane_of.setdefault(group, len(lane_of) % count)].append(entry)
    return [lane for lane in lanes if lane]
