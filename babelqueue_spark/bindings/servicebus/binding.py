"""The binding of Azure Service Bus."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from azure.servicebus import ServiceBusMessageBatch, ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from babelqueue_spark.bindings.batches import counted_attempts, fitting
from babelqueue_spark.bindings.contract import Binding, BindingConfig, Capabilities, DeadLetterStyle
from babelqueue_spark.bindings.headers import UnsendableError
from babelqueue_spark.bindings.servicebus.client import PAGE, Link, ServiceBusLinks, is_dead_letter_queue
from babelqueue_spark.bindings.servicebus.messages import LabelledMessage, body, claim_of, entries, received
from babelqueue_spark.bindings.servicebus.options import ServiceBusOptions
from babelqueue_spark.errors import BrokerError

_COMPLETED, _ABANDONED = "completed", "abandoned"
_MOST_SESSIONS = 32
_LARGEST_BACKLOG = 1_000_000
_FIRST_STEP = 1_000
_NEXT_SECONDS = 0.5
"""How long a claim waits for more, once it has something; the client itself gives up after a gap of 0.2 s."""
_SHORTEST_LOCK = 1.0
"""Seconds that a lock is thought to last where our clock is so wrong that it seems to have lapsed."""
_UNMEASURED = 1_024
"""Bytes that the client adds to a batch after it has measured it: the ids of its first message."""

_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:/\$(?:transfer/\$)?deadletterqueue)?", re.IGNORECASE)
_SUBSCRIPTION = "/subscriptions/"


@dataclass
class _Session:
    """A session that is locked for us.

    Attributes:
        link: whose end is the end of the lock.
        unsettled: lock tokens of what was claimed.
        dry: nothing more came when it was last asked.
    """

    link: Link
    unsettled: set[uuid.UUID] = field(default_factory=set)
    dry: bool = False


class ServiceBusBinding(Binding):
    """Azure Service Bus, by one connection for each queue and direction, and one for each session."""

    name = "servicebus"
    event_prefix = "cloudEvents_"
    title = "Service Bus"
    capabilities = Capabilities(
        claim_batch=20_000,
        publish_batch=5_000,
        durable_receipts=True,
        max_delay=None,
        browse="exact",
        ordered=True,
        keys=True,
        headers=True,
        native_dead_letters=True,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        self._options = ServiceBusOptions.parse(config)
        self._links = ServiceBusLinks(self._options)
        self.silence_limit = self._options.silence_limit
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._held: dict[str, dict[str, int]] = defaultdict(dict)  # queue → id → count when it was claimed
        if self._options.sessions:
            self.capabilities = replace(self.capabilities, durable_receipts=False)
        if self._options.duplicate_window:
            self.capabilities = replace(self.capabilities, duplicate_detection=True)

    def backlog(self, queue: str) -> int:
        """Messages that are active and not ours: counted among the first 250, then by sequence number.

        What others have locked cannot be told from what is ready, and counts.
        """
        with self._links.explained(queue):
            link = self._links.manager(queue)
            first, seen, active = 1, 0, 0
            while seen < PAGE:
                page = link.peek(first, PAGE - seen)
                if not page:
                    return active
                seen += len(page)
                active += len(self._ready(queue, page))
                first = _sequence(page[-1]) + 1
            return active + _beyond(link, first)

    def oldest(self, queue: str) -> float | None:
        """When the first active message came, by the service's clock; one peek at the first 250."""
        with self._links.explained(queue):
            ready = self._ready(queue, self._links.manager(queue).peek(1, PAGE))
        since = ready[0].enqueued_time_utc if ready else None
        return None if since is None else since.timestamp()

    def check_queue(self, queue: str) -> None:
        super().check_queue(queue)
        if not _NAME.fullmatch(queue):
            raise self.refused_name(
                queue, "it has letters, digits, '.', '-', '_' and '/', and may end with '/$DeadLetterQueue'"
            )

    def check_target(self, queue: str) -> None:
        super().check_target(queue)
        if is_dead_letter_queue(queue) or _SUBSCRIPTION in queue.casefold():
            raise self.refused_name(
                queue, "Service Bus itself puts messages there: write to a queue of your own, or the topic"
            )

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim by a link with credit for what is wanted, which is taken back at the end.

        It ends before locks lapse, and what lapsed nevertheless and came again is claimed once. An error ends
        the claim with what was taken before it, and shows itself again in the next one.
        """
        taken: list[ServiceBusReceivedMessage] = []
        try:
            with self._links.explained(queue):
                if self._options.sessions:
                    self._take_of_sessions(queue, taken, messages, max_bytes)
                else:
                    link = self._links.receiver(queue)
                    self._take(link, taken, messages, max_bytes)
                    link.drain()
                    if not taken:  # a silent service gives nothing either
                        link.peek(1, 1)
        except BrokerError:
            if not taken:
                raise
        latest = list({message.sequence_number: message for message in taken}.values())
        return self._kept(
            queue, received(latest, by_session=self._options.sessions, native=self.config.native), max_bytes
        )

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Return true where Service Bus confirmed it, also after the claim's connection ended."""
        return pa.array(self._settle(queue, deliveries, _COMPLETED), pa.bool_())

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """Release by abandoning; Service Bus counts the delivery all the same."""
        self._settle(queue, deliveries, _ABANDONED)

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Publish by batches as large as the namespace takes, one after the other, each of one key."""
        del idempotency_key
        made = self._entries(queue, messages)
        with self._links.explained(queue):
            for batch in self._batches(made, queue):
                self._links.send(queue, batch)
        return len(made)

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        """Return those that do not fit into a batch of their own."""
        made = self._entries(queue, messages)
        with self._links.explained(queue):
            sender, limit = self._links.sender(queue), self._limit(queue)
            return [
                row for row, entry in enumerate(made) if not _added(sender.create_message_batch(limit), entry)
            ]

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Browse by peek, without what this binding holds."""
        first = 1
        while True:
            with self._links.explained(queue):
                page = self._links.manager(queue).peek(first, PAGE)
            if not page:
                return
            first = _sequence(page[-1]) + 1
            ready = self._ready(queue, page)
            if ready:
                yield received(ready, by_session=self._options.sessions, native=self.config.native)

    def close(self) -> None:
        """Close all connections: sessions go back, messages when their locks lapse."""
        self._links.close()
        self._sessions.clear()
        self._held.clear()

    @classmethod
    def dead_letter_name(cls, queue: str, style: DeadLetterStyle) -> str:
        """`<queue>.dlq`, or `<queue>.failed`; of a subscription or a sub-queue that of the topic or queue."""
        owner = queue.partition("/$")[0]
        lowered = owner.casefold()
        if _SUBSCRIPTION in lowered:
            owner = owner[: lowered.index(_SUBSCRIPTION)] + "." + owner[lowered.rindex("/") + 1 :]
        return f"{owner}.dlq" if style == "babelqueue" else f"{owner}.failed"

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        return counted_attempts(body_attempts, deliveries.column("count"))

    def duplicate_window(self, queue: str) -> float:
        """Return the option's value: only a manager of the namespace could ask for it."""
        del queue
        return self._options.duplicate_window

    def _take_of_sessions(
        self, queue: str, taken: list[ServiceBusReceivedMessage], messages: int, max_bytes: int
    ) -> None:
        """Receive from one session: one of ours that may have more, or the next that is free."""
        of_ours = (each for (name, _), each in self._sessions.items() if name == queue and not each.dry)
        session = next(of_ours, None) or self._next_session(queue)
        if session is None:
            return
        try:
            session.dry = self._take(session.link, taken, messages, max_bytes)
        except BaseException:
            taken.clear()  # the session ends, and what it gave goes back with it
            self._end(queue, session)
            raise
        session.unsettled.update(
            message.lock_token for message in taken if isinstance(message.lock_token, uuid.UUID)
        )
        if not session.unsettled:
            self._end(queue, session)

    def _next_session(self, queue: str) -> _Session | None:
        """Return a session that is free and has messages; none while we have as many as we may."""
        link = self._links.next_session(queue) if len(self._sessions) < _MOST_SESSIONS else None
        if link is None:
            return None
        return self._sessions.setdefault((queue, str(link.session)), _Session(link))

    def _end(self, queue: str, session: _Session) -> None:
        self._sessions.pop((queue, str(session.link.session)), None)
        session.link.close()

    def _take(
        self, link: Link, taken: list[ServiceBusReceivedMessage], messages: int, max_bytes: int
    ) -> bool:
        """Receive as many at once as fit if none is larger than those before; whether nothing more came."""
        size = largest = 0
        started = time.monotonic()
        while (left := messages - len(taken)) > 0 and (size + largest <= max_bytes or not taken):
            if taken and time.monotonic() - started > (self.lease / 2 or math.inf):
                break
            credit = min(left, self._options.prefetch)
            wanted = min(credit, (max_bytes - size) // largest) if largest else 1
            patience = _NEXT_SECONDS if taken else self._options.max_wait_time
            found = link.receive(wanted, credit, min(patience, self._options.max_wait_time))
            taken += found
            self._measure_lease(found)
            sizes = [len(body(message)) for message in found]
            size += sum(sizes)
            largest = max([largest, 1, *sizes])
            if not found:
                return True
        return False

    def _measure_lease(self, found: Sequence[ServiceBusReceivedMessage]) -> None:
        """Take the shortest lock so far as the lease: only messages tell it, and those of sessions do not."""
        if found and found[0].locked_until_utc is not None:
            left = (found[0].locked_until_utc - datetime.now(UTC)).total_seconds()
            self.lease = min(self.lease or math.inf, max(_SHORTEST_LOCK, left))

    def _kept(self, queue: str, claimed: pa.RecordBatch, max_bytes: int) -> pa.RecordBatch:
        """Return what the bound of bytes allows; the rest is released, or lapses where that fails."""
        columns = (claimed.column(name).to_pylist() for name in ("id", "count"))
        self._held[queue].update(zip(*columns, strict=True))
        kept = fitting(pc.binary_length(claimed.column("body")).to_pylist(), max_bytes)
        self._give_back(lambda: self.release(queue, claimed.slice(kept)), claimed.num_rows - kept)
        return claimed.slice(0, kept)

    def _settle(self, queue: str, deliveries: pa.RecordBatch, status: str) -> list[bool]:
        """Settle each delivery by the link that can; true where that was confirmed."""
        claims = [claim_of(receipt) for receipt in deliveries.column("receipt").to_pylist()]
        settled: dict[uuid.UUID, bool] = {}
        for session in dict.fromkeys(session for _, session in claims):
            tokens = [token for token, of in claims if of == session]
            with self._links.explained(queue):
                done = self._settle_tokens(queue, session, tokens, status)
            settled.update(zip(tokens, done, strict=True))
        for name in deliveries.column("id").to_pylist():
            self._held[queue].pop(name, None)
        return [settled[token] for token, _ in claims]

    def _settle_tokens(
        self, queue: str, session: str, tokens: Sequence[uuid.UUID], status: str
    ) -> list[bool]:
        if not self._options.sessions:
            return self._links.manager(queue).settle(status, tokens)
        held = self._sessions.get((queue, session))
        if held is None:
            return [False] * len(tokens)
        try:
            return held.link.settle(status, tokens)
        finally:
            held.unsettled.difference_update(tokens)
            if not held.unsettled:
                self._end(queue, held)

    def _batches(self, made: Iterable[LabelledMessage], queue: str) -> list[ServiceBusMessageBatch]:
        """Return the messages by key, in as few batches as their size allows, before the first is sent."""
        by_key: dict[str | None, list[LabelledMessage]] = defaultdict(list)
        for entry in made:
            by_key[entry.message.session_id].append(entry)
        return [batch for group in by_key.values() for batch in self._split(group, queue)]

    def _entries(self, queue: str, messages: pa.RecordBatch) -> list[LabelledMessage]:
        session = (self._options.session_id or queue) if self._options.sessions else None
        try:
            return entries(messages, session, native=self.config.native)
        except UnsendableError as error:
            raise self._links.error(str(error), queue) from None

    def _limit(self, queue: str) -> int:
        """Bytes of the largest batch, and so of the largest message."""
        return self._links.sender(queue).create_message_batch().max_size_in_bytes - _UNMEASURED

    def _split(self, group: Iterable[LabelledMessage], queue: str) -> Iterator[ServiceBusMessageBatch]:
        sender, limit = self._links.sender(queue), self._limit(queue)
        batch = sender.create_message_batch(limit)
        for entry in group:
            if len(batch) and not _added(batch, entry):
                yield batch
                batch = sender.create_message_batch(limit)
            if not len(batch) and not _added(batch, entry):
                raise self._links.error(
                    f"{entry.label} cannot be sent: with its properties it is larger than "
                    f"{limit:,} bytes: keep large data elsewhere and send its address",
                    queue,
                )
        yield batch

    def _ready(
        self, queue: str, page: Iterable[ServiceBusReceivedMessage]
    ) -> list[ServiceBusReceivedMessage]:
        """Return those of the peeked messages that are active, and not held by us."""
        held = self._held[queue]
        return [
            message
            for message in page
            if message.state == ServiceBusMessageState.ACTIVE
            and held.get(str(message.sequence_number), -1) != (message.delivery_count or 0) + 1
        ]


def _beyond(link: Link, first: int) -> int:
    """Return how many sequence numbers there are from `first` to the last message; found by halving."""
    last, step = first - 1, _FIRST_STEP
    while found := link.peek(last + step, 1):
        last, step = _sequence(found[0]), step * 2
        if last - first > _LARGEST_BACKLOG:
            return _LARGEST_BACKLOG
    end = last + step
    while end - last > 1:
        middle = (last + end) // 2
        found = link.peek(middle, 1)
        last, end = (_sequence(found[0]), end) if found else (last, middle)
    return last - first + 1


def _sequence(message: ServiceBusReceivedMessage) -> int:
    number: int = message.sequence_number or 0
    return number


def _added(batch: ServiceBusMessageBatch, entry: LabelledMessage) -> bool:
    """Return whether the message still fits into the batch, which then has it."""
    try:
        batch.add_message(entry.message)
    except MessageSizeExceededError:
        return False
    return True
